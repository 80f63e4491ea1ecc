"""`rlvf bench sync`."""

import argparse
import json
import sys
from dataclasses import asdict
from itertools import chain

from flows.commands.command import Command

EXAMPLES = """
rlvf bench sync                                        all: minutes, 10 GB of memory
rlvf bench sync --parts codec --layers 2 --json        only the codec, on a smaller model, for a program
"""
PARTS = ("codec", "runs")


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("what", choices=["sync"], help="weights from one version to the next: sizes and speeds")
    command.add_argument(
        "--parts",
        metavar="PARTS",
        default=",".join(PARTS),
        help="codec (differences of a model of 0.6B parameters) or runs (of the tiny policy's checkpoints, by learning "
        "rate); both otherwise",
    )
    command.add_argument(
        "--layers", metavar="N", type=int, default=28, help="of the model's 28, to measure faster (28)"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    command.usage = "%(prog)s sync [options]"


def _run(given: argparse.Namespace) -> None:
    if not 1 <= given.layers <= 28:
        raise ValueError(f"--layers {given.layers}: give 1 to 28")
    parts = given.parts.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        raise ValueError(f"--parts {given.parts}: there is no {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    # with torch: not before the command line is known to be good
    from flows.benches.codec import synthetic, trained

    found: dict[str, object] = {}
    rows = found["codec"] = []
    table = sys.stderr if given.json else sys.stdout
    print(f"{'source':<18}{'changed':>9}{'ratio':>8}{'encode':>12}{'decode':>12}", file=table)
    runs = trained() if "runs" in parts else ()
    for figure in chain(runs, synthetic(given.layers) if "codec" in parts else ()):
        rows.append(asdict(figure))
        speeds = f"{figure.encode_mb_s:>7,.0f} MB/s{figure.decode_mb_s:>7,.0f} MB/s"
        print(f"{figure.source:<18}{figure.changed:>9.2%}{figure.ratio:>8.1f}{speeds}", file=table, flush=True)
    if given.json:
        print(json.dumps(found))


COMMAND = Command("bench", "measure what the documentation states", EXAMPLES, _options, _run)
