"""Learning on a built-in environment, by `rlvf train` as a user would run it.

    python -m tests.bench.episodes --environment guess [--seeds 0 1 2] [--steps 60] [--results guess.jsonl] \
        [--plot guess.png] [-- further options of rlvf train]

A table in Markdown on stdout: the share of episodes that were solved and the turns of an episode over the first and the
last 5 steps (an episode that is not solved counts with all of its turns), what the greedy policy gets on problems that
were held out, and how long the command took, the warm-up included where none is kept. --plot draws the first two
against minutes. Runs are kept in --results, a line each, and those that are there are not made again.
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows.report.pictures import GREY, INK, SEEDS, save, trailing_means
from infra.runs.metric_log import read_metrics
from rl.config import ENVIRONMENTS
from tests.streams import optimum

WINDOW = 5
SOLVED = {"guess": "reward/found"}  # what says so, where a reward of 1 does not
WANTED = {"guess": 0.95, "calculator": 0.9}
LEAST = {"guess": optimum()}  # turns on average


def measure(name: str, seed: int, options: Sequence[str]) -> dict[str, Any]:
    """One run of the command."""
    command = [str(Path(sys.executable).with_name("rlvf")), "train", "--json", "--environment", name]
    began = time.time()
    ran = subprocess.run([*command, "--seed", str(seed), *options], stdout=subprocess.PIPE, text=True, check=True)
    ended = time.time()
    lines = read_metrics(Path(json.loads(ran.stdout)["run"]) / "metrics.jsonl")
    steps = [line for line in lines if "turns/mean" in line.metrics]
    return {
        "seed": seed,
        "minutes": (ended - began) / 60,
        "solved": [line.metrics[SOLVED.get(name, "reward/pass_rate")] for line in steps],
        "turns": [line.metrics["turns/mean"] for line in steps],
        "at": [(line.time / 1000 - began) / 60 for line in steps],
        "greedy": [line.metrics["eval/reward"] for line in lines if "eval/reward" in line.metrics],
        "sampled": [line.metrics["eval/reward_sampled"] for line in lines if "eval/reward_sampled" in line.metrics],
    }


def row(run: dict[str, Any]) -> str:
    """A line of the table."""
    solved, turns = (trailing_means(run[name], WINDOW)[WINDOW - 1 :] for name in ("solved", "turns"))
    before, after = run["greedy"][0], run["greedy"][-1]
    return (
        f"| {run['seed']} | {solved[0]:.3f} → {solved[-1]:.3f} | {turns[0]:.2f} → {turns[-1]:.2f} "
        f"| {before:.3f} → {after:.3f} | {run['minutes']:.1f} |"
    )


def draw(path: Path, name: str, runs: Sequence[dict[str, Any]]) -> None:
    """Each step pale, the mean over WINDOW steps as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    solved, turns = figure.subplots(1, 2)
    for axes, what, line in ((solved, "solved", WANTED.get(name)), (turns, "turns", LEAST.get(name))):
        for color, run in zip(itertools.cycle(SEEDS), runs, strict=False):
            axes.plot(run["at"], run[what], color=color, alpha=0.18, linewidth=0.9)
            label = f"seed {run['seed']}"
            axes.plot(run["at"], trailing_means(run[what], WINDOW), color=color, linewidth=2.0, label=label)
        if line is not None:
            axes.axhline(line, color=GREY, linewidth=1, linestyle="--")
        axes.set_xlabel("minutes of the command", color=INK)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.25)
    solved.set_ylabel("share of sampled episodes that are solved", color=INK)
    turns.set_ylabel("turns of an episode", color=INK)
    solved.legend(loc="lower right", frameon=False, labelcolor=INK)
    figure.suptitle(f"rlvf train --environment {name}", color=INK)
    save(figure, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environment", required=True, choices=ENVIRONMENTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--results", type=Path, default=Path("episodes.jsonl"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("options", nargs="*", help="for rlvf train, after --")
    given = parser.parse_args()
    name, options = given.environment, ["--steps", str(given.steps), *given.options]
    lines = given.results.read_text("utf-8").splitlines() if given.results.exists() else []
    kept = {(run["environment"], run["seed"], tuple(run["options"])): run for run in map(json.loads, lines)}
    print("| seed | solved | turns | greedy reward | minutes |\n| --- | --- | --- | --- | --- |")
    runs = []
    for seed in given.seeds:
        key = name, seed, tuple(options)
        if key not in kept:
            kept[key] = {"environment": name, "options": options, **measure(name, seed, options)}
            with given.results.open("a", encoding="utf-8") as out:
                out.write(json.dumps(kept[key]) + "\n")
        runs.append(kept[key])
        print(row(kept[key]), flush=True)
    if given.plot:
        draw(given.plot, name, runs)


if __name__ == "__main__":
    main()
