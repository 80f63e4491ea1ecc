"""Runs `rlvf train` as a user would, several times, and reports what the documentation states.

    python tests/bench/train.py --seeds 0 1 2 [--plot curves.png] [--beside CHECKOUT] [-- further options of rlvf train]

For each run: wall seconds of the command, seconds until its first step, peak memory over all its processes (summed
proportional set size on Linux, resident size elsewhere), rollouts/s, held-out pass rates, and the best and first mean
sampled pass rate over 5 consecutive steps. One JSON object on stdout; a line per run on stderr. With --beside each seed
is run by the rlvf of another checkout, with a .venv of its own, as well.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from flows.report.pictures import GREY, INK, SEEDS, blank, save, trailing_means
from infra.runs.metric_log import read_metrics

POLL_SECONDS = 0.5
WINDOW = 5
TARGET = 0.95
SAMPLES = 8  # completions of a group, by default
CURVES = ("curve", "rollouts", "seconds")  # one figure a step


def memory(root: psutil.Process) -> int:
    """Bytes held by a process and everything below it; a page that several share counts once in all."""
    total = 0
    for process in [root, *root.children(recursive=True)]:
        try:
            full = process.memory_full_info()
            total += getattr(full, "pss", full.rss)
        except psutil.Error:
            continue  # it ended meanwhile
    return total


def draw(path: Path, curves: dict[str, list[float]], title: str) -> None:
    """The pass rates of step 0, 1, 2 ... by run: each step's pale, their mean over WINDOW steps as a line."""
    figure, axes = blank(title)
    axes.set_ylabel("pass rate", color=INK)
    axes.set_ylim(0, 1.005)
    axes.axhline(TARGET, color=GREY, linewidth=1, linestyle="--")
    for color, (name, rates) in zip(itertools.cycle(SEEDS), curves.items(), strict=False):
        axes.plot(range(len(rates)), rates, color=color, alpha=0.18, linewidth=0.9)
        axes.plot(range(len(rates)), trailing_means(rates, WINDOW), color=color, linewidth=2.2, label=name)
    axes.legend(loc="lower right", frameon=False, labelcolor=INK)
    save(figure, path)


def measure(rlvf: Path, seed: int, options: list[str]) -> dict[str, Any]:
    """One run of the command."""
    command = [str(rlvf), "train", "--json", "--seed", str(seed), *options]
    began = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    first_step: list[float] = []
    said: list[str] = []

    def listen() -> None:
        assert child.stderr is not None
        for line in child.stderr:
            said.append(line)
            if line.startswith("train") and not first_step:
                first_step.append(time.monotonic() - began)

    listener = threading.Thread(target=listen)
    listener.start()
    peak = 0
    root = psutil.Process(child.pid)
    while child.poll() is None:
        peak = max(peak, memory(root))
        time.sleep(POLL_SECONDS)
    listener.join()
    assert child.stdout is not None
    if child.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {child.returncode}:\n{''.join(said[-15:])}")
    result = json.loads(child.stdout.read())
    lines = read_metrics(Path(result["run"]) / "metrics.jsonl")
    sampled = [line.metrics["reward/pass_rate"] for line in lines if "reward/pass_rate" in line.metrics]
    means = trailing_means(sampled, WINDOW)[WINDOW - 1 :]
    return {
        "rlvf": str(rlvf),
        "seed": seed,
        "wall_seconds": round(time.monotonic() - began, 1),
        "first_step_after_seconds": round(first_step[0], 1) if first_step else None,
        "peak_memory_gb": round(peak / 1e9, 2),
        "rollouts_per_second": round(result["rollouts_per_second"], 1),
        "greedy_before": result["pass_rate_before"],
        "greedy_after": result["pass_rate_after"],
        "sampled_first_5": round(means[0], 3) if means else None,
        "sampled_last_5": round(means[-1], 3) if means else None,
        "sampled_best_5": round(max(means), 3) if means else None,
        f"reached_{TARGET}_at": next((step + WINDOW for step, mean in enumerate(means) if mean >= TARGET), None),
        "stages": {stage: round(share, 3) for stage, share in result["stages"].items()},
        "curve": sampled,
        "rollouts": [
            line.metrics["groups/generated"] * SAMPLES for line in lines if "groups/generated" in line.metrics
        ],
        "seconds": [line.metrics["perf/step_seconds"] for line in lines if "perf/step_seconds" in line.metrics],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--plot", type=Path, help="draw the sampled pass rates of all seeds into this PNG")
    parser.add_argument("--beside", type=Path, help="another checkout, run in turns with this one")
    parser.add_argument("options", nargs="*", help="for rlvf train, after --")
    given = parser.parse_args()
    runs = []
    ours = Path(sys.executable).with_name("rlvf")
    turns = [ours] if given.beside is None else [given.beside.absolute() / ".venv" / "bin" / "rlvf", ours]
    for seed, rlvf in itertools.product(given.seeds, turns):
        runs.append(measure(rlvf, seed, given.options))
        print({key: value for key, value in runs[-1].items() if key not in CURVES}, file=sys.stderr, flush=True)
    if given.plot:
        drawn = {f"seed {run['seed']}": run["curve"] for run in runs if run["rlvf"] == str(ours)}
        draw(given.plot, drawn, title=" ".join(["rlvf train", *given.options]))
    print(json.dumps({"command": ["rlvf", "train", *given.options], "cores": os.cpu_count(), "runs": runs}))


if __name__ == "__main__":
    main()
