"""`rlvf train --environment guess.py:Guess` beside TRL's GRPOTrainer with the same class as its `environment_factory`.

    python -m tests.bench.trl_environments [--repeats 3] [--steps 8] [--prompts 8] [--policy FOLDER]

Both begin with the same policy, which `tests/bench/player.py` makes and which calls the tool in turn after turn, draw
the same number of episodes a step from the same problems, and run one after the other on the same cores: rlvf, TRL,
rlvf, TRL, ... TRL has the environment of its own of `tests/bench/trl.py`. An episode has at most 8 turns of the
policy's and 400 tokens, observations among them, at temperature 1; a learning rate of 1e-6 keeps the policy as it is.

Episodes/s are those of the steps after the second over their wall time, all steps together; rlvf draws while it learns,
so it makes a step more, in which nothing is left to draw, and which is not counted. Shares are of the same time: in
which episodes were played (turns drawn, tools called), and in which the policy was updated. The class is that of
docs/environments.md; its attribute `over`, by which rlvf ends an episode and which TRL passes over, has another name
here, so that both let the policy say a last word. `--over` leaves it as it is; `--built-in` also runs rlvf's own
`guess`, which has an `over`. A Markdown table is printed on stdout, what else is said on stderr.
"""

import argparse
import json
import os
import re
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from infra.runs.metric_log import read_metrics
from rl.problems.played.guess import stream
from tests.bench.trl import ENVIRONMENT, ROOT, environment

SAMPLES, TOKENS, TURNS, RATE = 8, 400, 8, 1e-6
WARM = 2  # first steps that are not counted
WARM_UP = 100  # steps of the policy's


def written(folder: Path, problems: int, over: bool) -> tuple[Path, Path]:
    """The class of the documentation and problems, in files."""
    shown = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")
    found = re.search(r"```python\n(class Guess:.*?)```", shown, re.DOTALL)
    assert found is not None
    text = found[1] if over else found[1].replace("self.over", "self.found")
    assert f"turns, seconds, memory = {TURNS}," in text
    place, table = folder / "guess.py", folder / "numbers.jsonl"
    place.write_text(text, encoding="utf-8")
    rows = ({"prompt": each.prompt, "target": each.target} for each in islice(stream(0, 0), problems))
    table.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return place, table


def ours(name: str, table: Path, given: argparse.Namespace, seed: int) -> dict[str, float]:
    """Figures of `rlvf train` with this environment."""
    options = {
        "environment": name,
        "problems": table,
        "policy": given.policy,
        "steps": given.steps + 1,
        "held_out": 0,
        "seed": seed,
        "batch.prompts": given.prompts,
        "batch.samples": SAMPLES,
        "batch.oversample": 1,
        "sampling.max_tokens": TOKENS,
        "optimizer.lr": RATE,
    }
    words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
    command = [str(Path(sys.executable).with_name("rlvf")), "train", "--json", *words]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    lines = [line.metrics for line in read_metrics(Path(said["run"]) / "metrics.jsonl")]
    steps = [figures for figures in lines if "perf/rollouts_per_second" in figures][WARM:-1]
    seconds = sum(step["perf/step_seconds"] for step in steps)
    assert len(steps) == given.steps - WARM
    assert not any(step["groups/failed"] for step in steps)

    def share(name: str) -> float:
        return sum(step[name] * step["perf/step_seconds"] for step in steps) / seconds

    return {
        "episodes_per_second": sum(step["groups/generated"] for step in steps) * SAMPLES / seconds,
        "turns": statistics.fmean(step["turns/mean"] for step in steps),
        "tokens": statistics.fmean(step["completion/tokens_mean"] for step in steps),
        "groups": statistics.fmean(step["groups/used"] for step in steps),
        "playing": share("perf/generator_busy"),
        "learning": share("perf/trainer_busy"),
    }


def theirs(python: Path, place: Path, table: Path, given: argparse.Namespace, seed: int) -> dict[str, float]:
    """Figures of TRL, by this file in its environment."""
    command = [str(python), "-m", "tests.bench.trl_environments", "--trainer", str(place), "--table", str(table)]
    options = {"steps": given.steps, "prompts": given.prompts, "policy": given.policy, "seed": seed}
    words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
    said = subprocess.run([*command, *words], check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout
    found: dict[str, float] = json.loads(said.splitlines()[-1])
    return found


def train(given: argparse.Namespace) -> dict[str, float]:
    """Figures of GRPOTrainer, in its environment."""
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    rows = [json.loads(line) for line in given.table.read_text(encoding="utf-8").splitlines()]
    asked = [{**row, "prompt": [{"role": "user", "content": row["prompt"]}]} for row in rows]
    ended: list[float] = []
    played: list[tuple[float, int, int, int]] = []  # of each batch: seconds, episodes, turns, tokens of the policy's

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ended.append(time.perf_counter())
            print(f"TRL step {len(ended)} of {given.steps}", file=sys.stderr, flush=True)

    class Timed(GRPOTrainer):
        def _generate(self, prompts: list[Any]) -> Any:
            began = time.perf_counter()
            found = super()._generate(prompts)
            _, _, own, completions, *_ = found
            turns = sum(message["role"] == "assistant" for episode in completions for message in episode)
            tokens = sum(map(sum, own))
            played.append((time.perf_counter() - began, len(completions), turns, tokens))
            return found

    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=given.prompts * SAMPLES,
            num_generations=SAMPLES,
            max_completion_length=TOKENS,
            max_tool_calling_iterations=TURNS - 1,  # a turn follows the last of them
            chat_template_kwargs={"enable_thinking": False},
            learning_rate=RATE,
            max_steps=given.steps,
            temperature=1.0,
            top_k=0,
            seed=given.seed,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Timed(
            given.policy,
            args=settings,
            train_dataset=Dataset.from_list(asked),
            environment_factory=runpy.run_path(str(given.trainer))["Guess"],
        )
        trainer.add_callback(Clock())
        trainer.train()
    seconds, counted = ended[-1] - ended[WARM - 1], played[WARM:]
    playing, episodes, turns, tokens = (sum(column) for column in zip(*counted, strict=True))
    assert len(counted) == given.steps - WARM
    return {
        "episodes_per_second": episodes / seconds,
        "turns": turns / episodes,
        "tokens": tokens / episodes,
        "groups": given.prompts,  # those without variance, too
        "playing": playing / seconds,
        "learning": 1 - playing / seconds,
    }


def policy(place: Path, folder: Path) -> str:
    """The policy that both begin with, its chat template Qwen3's own, of which TRL keeps a copy."""
    from tests.bench.player import player

    [template] = ENVIRONMENT.glob("lib/python*/site-packages/trl/chat_templates/qwen3.jinja")
    cls = runpy.run_path(str(place))["Guess"]
    return player(folder, ROOT, template.read_text(encoding="utf-8"), cls, WARM_UP)


def table_of(rows: Sequence[tuple[int, str, dict[str, float]]], prompts: int) -> str:
    """Every run, and the ratio of each repeat."""
    head = ["repeat", "", "episodes/s", "turns", "tokens", "groups learned from", "playing", "learning", "rlvf / TRL"]
    paces = {(repeat, name): figures["episodes_per_second"] for repeat, name, figures in rows}
    lines = [head, ["---"] * len(head)]
    for repeat, name, figures in rows:
        numbers = [f"{figures['episodes_per_second']:.2f}", f"{figures['turns']:.2f}", f"{figures['tokens']:.0f}"]
        numbers.append(f"{figures['groups']:.1f} of {prompts}")
        shares = [f"{figures[share]:.0%}" for share in ("playing", "learning")]
        ratio = "" if name == "TRL" else f"{paces[repeat, name] / paces[repeat, 'TRL']:.2f}"
        lines.append([str(repeat), name, *numbers, *shares, ratio])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8, help=f"of a run; the first {WARM} are not counted")
    parser.add_argument("--prompts", type=int, default=8, help=f"of a step, each with {SAMPLES} episodes")
    parser.add_argument("--policy", help="a folder that it was made in before")
    parser.add_argument("--over", action="store_true", help="rlvf ends an episode as the class says")
    parser.add_argument("--built-in", action="store_true", help="rlvf with its own guess, too")
    parser.add_argument("--trl", default="1.16.0", help="its version")
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--trainer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--table", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.steps <= WARM:
        parser.error(f"--steps: the first {WARM} are not counted; give more")
    if given.trainer:
        print(json.dumps(train(given)))
        return
    python = environment(given.trl)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place, table = written(folder, given.prompts * (given.steps + 2), given.over)
        given.policy = given.policy or policy(place, folder / "policy")
        rows: list[tuple[int, str, dict[str, float]]] = []
        for repeat in range(1, given.repeats + 1):
            rows.append((repeat, "rlvf", ours(f"{place}:Guess", table, given, repeat)))
            rows.append((repeat, "TRL", theirs(python, place, table, given, repeat)))
            if given.built_in:
                rows.append((repeat, "rlvf, its own guess", ours("guess", table, given, repeat)))
            print(*rows[-2 - given.built_in :], sep="\n", file=sys.stderr, flush=True)
    print(f"TRL {given.trl}, {os.cpu_count()} cores, {given.prompts} x {SAMPLES} episodes a step\n")
    print(table_of(rows, given.prompts))


if __name__ == "__main__":
    main()
