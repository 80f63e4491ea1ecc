"""`rlvf bench sync`."""

import argparse
import json
import sys
from dataclasses import asdict
from itertools import chain

from flows.commands.command import Command

EXAMPLES = """
rlvf bench sync                                        all: a quarter of an hour, 10 GB of memory, root for Wi-Fi
rlvf bench sync --parts codec --layers 2 --json        only the codec, on a smaller model, for a program
"""
PARTS = ("codec", "runs", "wifi")


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("what", choices=["sync"], help="weights from one version to the next: sizes and speeds")
    command.add_argument(
        "--parts",
        metavar="PARTS",
        default=",".join(PARTS),
        help="some of codec (differences of a model of 0.6B parameters), runs (of the tiny policy's checkpoints, by "
        "learning rate), wifi (until generators on emulated Wi-Fi have new weights); all of them otherwise",
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
    from flows.benches.wifi import missing, on_wifi

    found: dict[str, object] = {}
    rows = found["codec"] = []
    table = sys.stderr if given.json else sys.stdout
    if {"codec", "runs"} & set(parts):
        print(f"{'source':<18}{'changed':>9}{'ratio':>8}{'encode':>12}{'decode':>12}", file=table)
    runs = trained() if "runs" in parts else ()
    for figure in chain(runs, synthetic(given.layers) if "codec" in parts else ()):
        rows.append(asdict(figure))
        speeds = f"{figure.encode_mb_s:>7,.0f} MB/s{figure.decode_mb_s:>7,.0f} MB/s"
        print(f"{figure.source:<18}{figure.changed:>9.2%}{figure.ratio:>8.1f}{speeds}", file=table, flush=True)
    if "wifi" in parts:
        found["wifi_speedup"] = None
        if reason := missing():
            found["wifi_left_out"] = reason
            print(f"Wi-Fi is left out: {reason}", file=sys.stderr)
        else:
            wifi = on_wifi(given.layers, lambda text: print(f"wifi: {text}", file=sys.stderr, flush=True))
            found.update(wifi_speedup=wifi.speedup, wifi=asdict(wifi))
            print(
                f"on Wi-Fi two generators have a version of {wifi.parameters / 1e9:.2f}B parameters, of which "
                f"{wifi.changed:.2%} have changed, after {wifi.seconds:.1f} s; whole, after {wifi.full_seconds:.0f} s: "
                f"{wifi.speedup:.0f} times sooner",
                file=table,
            )
    if given.json:
        print(json.dumps(found))


COMMAND = Command("bench", "measure what the documentation states", EXAMPLES, _options, _run)
