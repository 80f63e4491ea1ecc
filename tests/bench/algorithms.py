"""Learning by every algorithm from the same warm-up, by `rlvf train` as a user would run it.

    python -m tests.bench.algorithms --problems math_1k.csv [--seeds 0 1 2] [--steps 120] [--only grpo ppo] \
        [--results runs.jsonl] [--plot algorithms.png] [-- further options of rlvf train]

A table in Markdown on stdout: the sampled pass rate over the first, the last and the best 5 steps, when it first
reached 0.9, in steps, rollouts and seconds of training; and a plot of pass rate against rollouts and against seconds,
the mean over seeds. Runs are kept in --results, a line each, and those that are there are not made again.
"""

import argparse
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from flows.report.pictures import GREY, INK, SEEDS, save, trailing_means
from rl.algorithms import ALGORITHMS
from tests.bench.train import WINDOW, measure

TARGET = 0.9


def reached(run: dict[str, Any]) -> tuple[int, int, float] | None:
    """Steps, rollouts and seconds after which the mean over 5 steps was first the target; None if never."""
    means = trailing_means(run["curve"], WINDOW)
    step = next((index for index, mean in enumerate(means) if mean >= TARGET), None)
    if step is None:
        return None
    return step + 1, int(sum(run["rollouts"][: step + 1])), sum(run["seconds"][: step + 1])


def row(name: str, runs: Sequence[dict[str, Any]]) -> str:
    """A line of the table, of all seeds of an algorithm."""
    found = [reached(run) for run in runs]

    def each(values: Sequence[float | None], form: str) -> str:
        return ", ".join("–" if value is None else format(value, form) for value in values)

    cells = [
        name,
        each([run["sampled_first_5"] for run in runs], ".2f"),
        each([run["sampled_last_5"] for run in runs], ".3f"),
        each([run["sampled_best_5"] for run in runs], ".3f"),
        *(
            each([None if one is None else one[at] for one in found], form)
            for at, form in enumerate((",d", ",d", ".0f"))
        ),
    ]
    return f"| {' | '.join(cells)} |"


def draw(path: Path, by_name: dict[str, list[dict[str, Any]]], title: str) -> None:
    """Pass rate against rollouts and against seconds: of each algorithm the mean over seeds, over 5 steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    styles = itertools.product(("-", "--", ":"), SEEDS)
    drawn = dict(zip(by_name, styles, strict=False))
    for axes, (what, label) in zip(
        figure.subplots(1, 2, sharey=True), (("rollouts", "rollouts"), ("seconds", "seconds of training")), strict=True
    ):
        for name, runs in by_name.items():
            steps = min(len(run["curve"]) for run in runs)
            rates = [fmean(run["curve"][step] for run in runs) for step in range(steps)]
            along = [fmean(sum(run[what][: step + 1]) for run in runs) for step in range(steps)]
            style, color = drawn[name]
            axes.plot(along, trailing_means(rates, WINDOW), linestyle=style, color=color, linewidth=1.6, label=name)
        axes.axhline(TARGET, color=GREY, linewidth=1, linestyle="--")
        axes.set_xlabel(label, color=INK)
        axes.set_ylim(0.4, 1.005)
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("sampled pass rate, mean of 5 steps", color=INK)
    figure.axes[1].legend(loc="lower right", ncols=2, frameon=False, labelcolor=INK, fontsize=8)
    figure.suptitle(title, color=INK)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--only", nargs="+", default=sorted(ALGORITHMS), choices=sorted(ALGORITHMS), metavar="NAME")
    parser.add_argument("--results", type=Path, default=Path("algorithms.jsonl"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("options", nargs="*", help="for rlvf train, after --")
    given = parser.parse_args()
    lines = given.results.read_text("utf-8").splitlines() if given.results.exists() else []
    runs = {(run["algorithm"], run["seed"], run["steps"]): run for run in map(json.loads, lines)}
    by_name = defaultdict(list)
    for seed, name in itertools.product(given.seeds, given.only):
        key = (name, seed, given.steps)
        if key not in runs:
            options = ["--problems", given.problems, "--algorithm", name, "--steps", str(given.steps), *given.options]
            run = measure(Path(sys.executable).with_name("rlvf"), seed, options)
            runs[key] = {"algorithm": name, "steps": given.steps, **run}
            with given.results.open("a", encoding="utf-8") as out:
                out.write(json.dumps(runs[key]) + "\n")
        by_name[name].append(runs[key])
        first, last = runs[key]["sampled_first_5"], runs[key]["sampled_last_5"]  # None where nothing was sampled
        print(f"{name}, seed {seed}: {first} → {last}", file=sys.stderr, flush=True)
    print("| algorithm | first 5 | last 5 | best 5 | 0.9 at step | rollouts | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, of in sorted(by_name.items()):
        print(row(name, of))
    if given.plot:
        draw(given.plot, dict(sorted(by_name.items())), f"{Path(given.problems).name}, {given.steps} steps")


if __name__ == "__main__":
    main()
