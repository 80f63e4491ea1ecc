"""What a command of `rlvf` is: a name, a line for the list, examples, its options, and what it does."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """One word after `rlvf`."""

    name: str
    summary: str  # for the list of commands, without a capital or a full stop
    examples: str  # one a line, each with what it does
    options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
    first: tuple[str, ...] = ()  # the options that `--help` lists, where it does not list all
