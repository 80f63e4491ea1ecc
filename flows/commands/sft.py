"""`rlvf sft`."""

import argparse
import json

from flows.commands.command import Command
from flows.commands.unused_up import say_unused_up
from flows.commands.workplace import in_workplace
from flows.config import SftConfig
from flows.options.reading import add_options, read_config
from flows.run.display import Display
from infra.interrupts import put_off
from infra.security.printable import printable

EXAMPLES = """
rlvf sft --warm_up.steps 400                           warm the tiny policy up; the result is kept
"""
FIRST = ("warm_up.steps", "warm_up.batch", "config", "json")


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON object")
    add_options(command, SftConfig)


def _run(given: argparse.Namespace) -> None:
    config = read_config(SftConfig, file=given.config, overrides=given.overrides)
    say_unused_up(config.cluster)

    def work(_: Display) -> str:
        with put_off():
            from flows.sft import sft

        return sft(config)

    uri = in_workplace(config.cluster, config.placement, work)
    print(json.dumps({"policy": uri}) if given.json else printable(uri))


COMMAND = Command("sft", "warm the tiny policy up by supervised learning", EXAMPLES, _options, _run, FIRST)
