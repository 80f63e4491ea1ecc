"""`rlvf bench`."""

import argparse
import json
import sys
from dataclasses import asdict
from itertools import chain

from flows.commands.command import Command

EXAMPLES = """
rlvf bench sync                                        all: minutes, 10 GB of memory
rlvf bench sync --parts codec --layers 2 --json        only the codec, on a smaller model, for a program
rlvf bench update                                      all: many minutes, 13 GB of memory
rlvf bench update --positions 1024 --json              only a small update, for a program
"""
PARTS = ("codec", "runs")


def _options(command: argparse.ArgumentParser) -> None:
    benches = command.add_subparsers(dest="what", metavar="COMMAND", required=True)
    sync = benches.add_parser("sync", help="weights from one version to the next: sizes and speeds")
    sync.add_argument(
        "--parts",
        metavar="PARTS",
        default=",".join(PARTS),
        help="codec (differences of a model of 0.6B parameters) or runs (of the tiny policy's checkpoints, by learning "
        "rate); both otherwise",
    )
    sync.add_argument("--layers", metavar="N", type=int, default=28, help="of the model's 28, to measure faster (28)")
    update = benches.add_parser("update", help="an update of a model with a large vocabulary: peak memory and speed")
    update.add_argument(
        "--positions",
        metavar="N,N",
        default="1024,4096,16384",
        help="of the update's groups (1024,4096,16384); 64 or more, from 1024 on multiples of 1024",
    )
    update.add_argument("--layers", metavar="N", type=int, default=2, help="of the 28 of Qwen3-0.6B (2)")
    update.add_argument("--vocabulary", metavar="N", type=int, default=151_936, help="tokens (151936, as Qwen3's)")
    update.add_argument("--repeats", metavar="N", type=int, default=1, help="updates in turns; the median counts (1)")
    for bench in (sync, update):
        bench.add_argument("--json", action="store_true", help="print one JSON object")


def _run(given: argparse.Namespace) -> None:
    if not 1 <= given.layers <= 28:
        raise ValueError(f"--layers {given.layers}: give 1 to 28")
    rows = {"sync": _sync, "update": _update}[given.what](given)
    if given.json:
        print(json.dumps(rows))


def _sync(given: argparse.Namespace) -> dict[str, object]:
    parts = given.parts.split(",")
    if unknown := sorted(set(parts) - set(PARTS)):
        raise ValueError(f"--parts {given.parts}: there is no {unknown[0]!r}; the parts are {', '.join(PARTS)}")
    # with torch: not before the command line is known to be good
    from flows.benches.codec import synthetic, trained

    rows: list[object] = []
    table = sys.stderr if given.json else sys.stdout
    print(f"{'source':<18}{'changed':>9}{'ratio':>8}{'encode':>12}{'decode':>12}", file=table)
    runs = trained() if "runs" in parts else ()
    for figure in chain(runs, synthetic(given.layers) if "codec" in parts else ()):
        rows.append(asdict(figure))
        speeds = f"{figure.encode_mb_s:>7,.0f} MB/s{figure.decode_mb_s:>7,.0f} MB/s"
        print(f"{figure.source:<18}{figure.changed:>9.2%}{figure.ratio:>8.1f}{speeds}", file=table, flush=True)
    return {"codec": rows}


def _positions(words: str) -> list[int]:
    counts = [int(word) if word.isdecimal() else 0 for word in words.split(",")]
    for count in counts:
        if count < 64 or (count > 1024 and count % 1024):
            raise ValueError(f"--positions {words}: give numbers from 64 on, beyond 1024 multiples of 1024")
    return counts


def _update(given: argparse.Namespace) -> dict[str, object]:
    positions = _positions(given.positions)
    for name in ("vocabulary", "repeats"):
        if (value := getattr(given, name)) < 1:
            raise ValueError(f"--{name} {value}: give 1 or more")
    # with torch: not before the command line is known to be good
    from flows.benches.update import figures

    rows: list[object] = []
    table = sys.stderr if given.json else sys.stdout
    print(f"{'positions':>9}  {'method':<14}{'extra memory':>14}{'tokens/s':>12}", file=table)
    for figure in figures(positions, given.layers, given.vocabulary, given.repeats):
        rows.append(asdict(figure))
        found = f"{figure.extra_gb:>11.2f} GB{figure.tokens_per_second:>12,.0f}" if figure.extra_gb is not None else ""
        print(f"{figure.positions:>9,}  {figure.method:<14}{found or '  does not fit here'}", file=table, flush=True)
    return {"update": rows}


COMMAND = Command("bench", "measure what the documentation states", EXAMPLES, _options, _run)
