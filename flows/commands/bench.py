"""`rlvf bench sync`."""

import argparse
import json
from dataclasses import asdict

from flows.commands.command import Command

EXAMPLES = """
rlvf bench sync                                        differences of a model of 0.6B parameters (7 GB of memory)
rlvf bench sync --layers 2 --json                      of a smaller one, for a program
"""


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("what", choices=["sync"], help="weights from one version to the next: sizes and speeds")
    command.add_argument(
        "--layers", metavar="N", type=int, default=28, help="of the model's 28, to measure faster (28)"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.usage = "%(prog)s sync [options]"


def _run(given: argparse.Namespace) -> None:
    if not 1 <= given.layers <= 28:
        raise ValueError(f"--layers {given.layers}: give 1 to 28")
    from flows.bench import synthetic  # with torch: not before the command line is known to be good

    rows = []
    if not given.json:
        print(f"{'source':<18}{'changed':>9}{'ratio':>8}{'encode':>12}{'decode':>12}")
    for figure in synthetic(given.layers):
        rows.append(asdict(figure))
        if not given.json:
            speeds = f"{figure.encode_mb_s:>7,.0f} MB/s{figure.decode_mb_s:>7,.0f} MB/s"
            print(f"{figure.source:<18}{figure.changed:>9.2%}{figure.ratio:>8.1f}{speeds}", flush=True)
    if given.json:
        print(json.dumps({"codec": rows}))


BENCH = Command("bench", "measure what the documentation states", EXAMPLES, _options, _run)
