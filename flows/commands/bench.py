"""`rlvf bench`."""

import argparse
import json
import math
import sys
from collections.abc import Collection
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TextIO

from flows.benches.shapes import DTYPES, ENGINES, LARGE, SHAPES, of_policy
from flows.commands.command import Command
from flows.config import MAX_STALENESS
from flows.start.preflight import check_model, check_shape
from flows.start.whole_paths import whole_problems
from infra.home import runs_uri
from infra.interrupts import put_off
from rl.config import TINY

EXAMPLES = """
rlvf bench sync                                        all: minutes, 10 GB of memory
rlvf bench sync --parts codec --layers 2 --json        only the codec, on a smaller model, for a program
rlvf bench update                                      all: many minutes, 13 GB of memory
rlvf bench update --positions 1024 --json              only a small update, for a program
rlvf bench generate --shapes tiny --repeats 3          a minute; without --shapes many, and 6 GB of memory
rlvf bench generate --policy Qwen/Qwen3-0.6B           a model of yours, on this machine
rlvf bench fit --policy Qwen/Qwen3-0.6B                what would fit here, full or by LoRA; nothing is loaded
rlvf bench generators --generators 64,1000             what so many generators, simulated, cost the flow: minutes
rlvf bench soak --minutes 30                           a run with a random fault every 20 s; 5 GB of memory
"""
PARTS = ("codec", "runs")


def _options(command: argparse.ArgumentParser) -> None:
    benches = command.add_subparsers(dest="what", metavar="COMMAND", required=True)
    sync = benches.add_parser("sync", help="weight deltas from one version to the next: sizes and speeds")
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
    generate = benches.add_parser(
        "generate", help="generation: tokens/s and peak memory, compared with transformers' generate and generate_batch"
    )
    model = generate.add_mutually_exclusive_group()
    model.add_argument(
        "--shapes",
        metavar="SHAPES",
        help="tiny (the policy made in code) or 0.6B (Qwen3's, with random weights); both otherwise",
    )
    model.add_argument("--policy", metavar="MODEL", help="instead: what policy.model takes, a hub id or a folder")
    generate.add_argument("--prompts", metavar="N", type=int, help="different ones (tiny 32, others 8)")
    generate.add_argument("--samples", metavar="N", type=int, help="completions of each (8)")
    generate.add_argument("--tokens", metavar="N", type=int, help="new ones of each completion (tiny 40, others 64)")
    generate.add_argument("--layers", metavar="N", type=int, help="of the 28 of 0.6B, to measure faster (28)")
    generate.add_argument(
        "--engines", metavar="NAMES", default=",".join(ENGINES), help=f"of {', '.join(ENGINES)} (all)"
    )
    generate.add_argument("--repeats", metavar="N", type=int, default=1, help="in turns; the median counts (1)")
    generate.add_argument("--dtype", choices=DTYPES, default="auto", help="of all engines, as policy.dtype (auto)")
    fit = benches.add_parser("fit", help="what fits on this device: full or LoRA training, and generation beside it")
    fit.add_argument(
        "--policy", metavar="MODEL", default=TINY, help="what policy.model takes, of which nothing is loaded (tiny)"
    )
    fit.add_argument(
        "--tokens", metavar="N", type=int, help="of prompt and completion together (1024, or all that the model takes)"
    )
    generators = benches.add_parser(
        "generators", help="overhead of the flow with many simulated generators: processor time a step, and memory"
    )
    many = "1,16,64,256,1000"
    generators.add_argument("--generators", metavar="N,N", default=many, help=f"how many ({many})")
    generators.add_argument(
        "--seconds", metavar="SECONDS", type=float, default=10.0, help="of a lease, on a generator of median speed (10)"
    )
    generators.add_argument(
        "--failures",
        metavar="SHARE",
        type=float,
        default=0.005,
        help="of leases in which a generator dies, or stops without dying: half of each (0.005)",
    )
    generators.add_argument("--steps", metavar="N", type=int, default=6, help="after two that do not count (6)")
    generators.add_argument("--seed", metavar="N", type=int, default=0, help="of seconds and failures (0)")
    generators.add_argument(
        "--processes", action="store_true", help="instead: processes that sleep, of which none fails (100 MB each)"
    )
    soak = benches.add_parser(
        "soak",
        help="soak test, a run with random faults: is every step made once, and does nothing grow?",
    )
    soak.add_argument("--minutes", metavar="N", type=float, default=30.0, help="from the first step on (30)")
    soak.add_argument("--every", metavar="SECONDS", type=float, default=20.0, help="between two faults (20)")
    soak.add_argument("--seed", metavar="N", type=int, default=0, help="of the list of faults (0)")
    soak.add_argument("--staleness", metavar="N", type=int, default=1, help="of the run (1)")
    soak.add_argument("--policy", metavar="MODEL", default=TINY, help="a warm one saves tiny's warm-up, minutes (tiny)")
    soak.add_argument("--problems", metavar="PROBLEMS", default="arithmetic", help="to train on (arithmetic)")
    for bench in (sync, update, generate, fit, generators, soak):
        bench.add_argument("--json", action="store_true", help="print one JSON object")


def _run(given: argparse.Namespace) -> None:
    _between(given, 1, 28, "layers")
    benches = {"sync": _sync, "update": _update, "generate": _generate, "fit": _fit}
    bench = {**benches, "generators": _generators, "soak": _soak}[given.what]
    rows = bench(given, sys.stderr if given.json else sys.stdout)
    if given.json:
        print(json.dumps(rows))
    if rows.get("broken"):
        raise SystemExit(1)


def _sync(given: argparse.Namespace, table: TextIO) -> dict[str, object]:
    parts = _named(given, "parts", PARTS)
    # with torch: not before the command line is known to be good
    with put_off():
        from flows.benches.codec import synthetic, trained

    rows: list[object] = []
    print(f"{'source':<18}{'changed':>9}{'ratio':>8}{'encode':>12}{'decode':>12}", file=table)
    runs = trained() if "runs" in parts else ()
    for figure in chain(runs, synthetic(given.layers) if "codec" in parts else ()):
        rows.append(asdict(figure))
        speeds = f"{figure.encode_mb_s:>7,.0f} MB/s{figure.decode_mb_s:>7,.0f} MB/s"
        print(f"{figure.source:<18}{figure.changed:>9.2%}{figure.ratio:>8.1f}{speeds}", file=table, flush=True)
    return {"codec": rows}


def _named(given: argparse.Namespace, option: str, known: Collection[str]) -> list[str]:
    """The names that an option gives, which are to be among those known."""
    words: str = getattr(given, option)
    names = list(dict.fromkeys(words.split(",")))
    if unknown := sorted(set(names) - set(known)):
        raise ValueError(f"--{option} {words}: there is no {unknown[0]!r}; the {option} are {', '.join(known)}")
    return names


def _between(given: argparse.Namespace, least: float, most: float, *names: str) -> None:
    for name in names:
        value = getattr(given, name, None)
        if value is not None and not least <= value <= most:
            wanted = "or more" if most == math.inf else f"to {most:g}"
            raise ValueError(f"--{name} {value:g}: give {least:g} {wanted}")


def _positions(words: str) -> list[int]:
    counts = [int(word) if word.isdecimal() else 0 for word in words.split(",")]
    for count in counts:
        if count < 64 or (count > 1024 and count % 1024):
            raise ValueError(f"--positions {words}: give numbers from 64 on, beyond 1024 multiples of 1024")
    return counts


def _update(given: argparse.Namespace, table: TextIO) -> dict[str, object]:
    positions = _positions(given.positions)
    _between(given, 1, math.inf, "vocabulary", "repeats")
    # with torch: not before the command line is known to be good
    with put_off():
        from flows.benches.update import figures

    rows: list[object] = []
    print(f"{'positions':>9}  {'method':<20}{'extra memory':>14}{'tokens/s':>12}", file=table)
    for figure in figures(positions, given.layers, given.vocabulary, given.repeats):
        rows.append(asdict(figure))
        found = f"{figure.extra_gb:>11.2f} GB{figure.tokens_per_second:>12,.0f}" if figure.extra_gb is not None else ""
        print(f"{figure.positions:>9,}  {figure.method:<20}{found or '  does not fit here'}", file=table, flush=True)
    return {"layers": given.layers, "vocabulary": given.vocabulary, "update": rows}


def _generate(given: argparse.Namespace, table: TextIO) -> dict[str, object]:
    if given.policy is not None:
        shapes = [of_policy(given.policy)]
    else:
        names = list(SHAPES) if given.shapes is None else _named(given, "shapes", SHAPES)
        shapes = [SHAPES[name] for name in names]
    engines = _named(given, "engines", ENGINES)
    if given.layers is not None and not any(shape.layers for shape in shapes):
        raise ValueError(f"--layers {given.layers}: only the shape {LARGE} can have fewer")
    _between(given, 1, math.inf, "prompts", "samples", "tokens", "repeats")
    if given.policy is not None:
        check_model(given.policy, runs_uri())
    # with torch: not before the command line is known to be good
    with put_off():
        from flows.benches.generate import check_reach, device_bandwidth, figures

    shapes = [shape.changed(given.prompts, given.samples, given.tokens, given.layers) for shape in shapes]
    shapes = [replace(shape, dtype=given.dtype) for shape in shapes]
    for shape in shapes:
        check_reach(shape)
    rows: list[object] = []
    read = device_bandwidth()
    print(f"{'shape':<15}{'engine':<16}{'tokens/s':>10}{'peak memory':>15}", file=table, flush=True)
    for shape in shapes:
        for figure, why_not in figures(shape, given.repeats, read, engines):
            rows.append(asdict(figure))
            found = f"  {why_not}"
            if figure.tokens_per_second is not None:
                found = f"{figure.tokens_per_second:>10,.0f}{figure.peak_gb:>12.2f} GB"
            print(f"{figure.shape:<15}{figure.engine:<16}{found}", file=table, flush=True)
        if figure.limit_tokens_per_second is not None:
            of = f"  where each step of {shape.sequences} reads the weights once, at {read:.1f} GB/s"
            print(f"{figure.shape:<15}{'memory limit':<16}{figure.limit_tokens_per_second:>10,.0f}{of}", file=table)
    return {"generate": rows}


def _fit(given: argparse.Namespace, table: TextIO) -> dict[str, object]:
    _between(given, 1, math.inf, "tokens")
    check_shape(given.policy, runs_uri())
    # with torch: not before the command line is known to be good
    with put_off():
        from rl.loading.capacity import fits

    try:
        found = fits(given.policy, given.tokens)
    except ValueError as error:
        raise ValueError(str(error).replace("sampling.max_tokens", f"--tokens {given.tokens}")) from None
    where = f"{found.parameters:,} parameters, {found.dtype} on {found.device}"
    print(f"{where}: {found.free_gb:.1f} GB are free", file=table)
    at_once = f"at once ({found.positions:,})"
    print(f"{'method':<44}{'trainer':>10}{'generator':>12}{'longest update':>17}{at_once:>18}", file=table)
    for fit in found.methods:
        room = f"{fit.longest:>17,}{fit.at_once:>18,}" if fit.longest else "  does not fit here"
        print(f"{fit.method:<44}{fit.trainer_gb:>7.2f} GB{fit.generator_gb:>9.2f} GB{room}", file=table)
    return {"fit": [{"dtype": found.dtype, **asdict(fit)} for fit in found.methods]}


def _generators(given: argparse.Namespace, table: TextIO) -> dict[str, object]:
    words = given.generators.split(",")
    if wrong := [word for word in words if not (word.isdecimal() and 1 <= int(word) <= 10_000)]:
        raise ValueError(f"--generators {given.generators}: {wrong[0]!r} is no number from 1 to 10000")
    _between(given, 1, math.inf, "steps")
    _between(given, 0.01, 3600, "seconds")
    _between(given, 0, 0.5, "failures")
    _between(given, 0, math.inf, "seed")
    # with Dask: not before the command line is known to be good
    with put_off():
        from flows.benches.apart import apart
        from flows.benches.generators import asleep, simulated

    rows: list[object] = []
    names = f"{'generators':>10}{'a step':>10}{'coordinator':>14}{'scheduler':>12}{'share':>8}"
    print(f"{names}{'a lease':>10}{'deaths':>8}{'stops':>7}{'memory':>10}{'grown':>8}", file=table, flush=True)
    for count in map(int, words):
        if given.processes:
            figure = apart(asleep, count, given.seconds, given.steps, given.seed)
        else:
            figure = apart(simulated, count, given.seconds, given.failures, given.steps, given.seed)
        assert figure is not None, "it takes next to no memory"
        rows.append(asdict(figure))
        times = f"{figure.step_seconds:>8.1f} s{figure.coordinator_seconds:>12.2f} s{figure.scheduler_seconds:>10.2f} s"
        failed = f"{figure.share:>8.1%}{figure.lease_ms:>7.1f} ms{figure.deaths:>8,}{figure.stops:>7,}"
        memory = f"{figure.memory_mb:>7,.0f} MB{figure.growth:>8.1%}"
        print(f"{figure.generators:>10,}{times}{failed}{memory}", file=table, flush=True)
    return {"generators": rows}


def _soak(given: argparse.Namespace, table: TextIO) -> dict[str, object]:
    _between(given, 1, 3600, "every")
    if not 2 * given.every <= 60 * given.minutes <= 60 * 10_000:
        raise ValueError(f"--minutes {given.minutes:g}: give time for a fault, {2 * given.every:g} s or more")
    _between(given, 0, math.inf, "seed")
    _between(given, 0, MAX_STALENESS, "staleness")
    check_model(given.policy, runs_uri())
    with put_off():
        from flows.benches.place import fresh_home
        from flows.benches.soak import ahead_by, soaked

    policy = str(Path(given.policy).resolve()) if Path(given.policy).is_dir() else given.policy
    options = {"policy": policy, "problems": whole_problems(given.problems), **ahead_by(given.staleness)}
    say = partial(print, file=table, flush=True)
    with fresh_home("rlvf-soak-") as home:
        found = soaked(home.folder, options, given.minutes, given.every, given.seed, say)
        home.failed = bool(broken := [check.name for check in found.checks if not check.passed])
    for check in found.checks:
        print(f"{'ok' if check.passed else 'FAILED':<8}{check.name}: {check.figure}", file=table)
    print(f"{found.steps:,} steps and {len(found.faults)} faults in {found.seconds / 60:.1f} minutes", file=table)
    return {"soak": asdict(found), "broken": broken}


COMMAND = Command("bench", "measure what the documentation states", EXAMPLES, _options, _run)
