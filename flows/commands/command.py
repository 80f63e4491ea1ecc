"""A command of `rlvf`."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

from infra.security.printable import printable


@dataclass(frozen=True)
class Command:
    """A word after `rlvf`, its options and its action."""

    name: str
    summary: str  # for the list of commands, without a capital or a full stop
    examples: str  # one a line, each with what it does
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    first: tuple[str, ...] = ()  # the options that `--help` lists, where it does not list all


def say(line: str) -> None:
    """Print a line of a command to stderr."""
    print(f"rlvf: {printable(line)}", file=sys.stderr)
