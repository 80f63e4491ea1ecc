"""`rlvf train` beside TRL's GRPOTrainer, in turns: the same policy, problems, verifier, batch, learning rate and cores.

    python tests/bench/trl.py [--steps 40] [--turns 3] [--trl 1.16.0]

TRL gets an environment of its own, `.venv-trl` beside this project's, with the same torch and transformers. Both begin
with what `rlvf sft` makes, and draw 32 arithmetic problems x 8 completions of at most 40 tokens a step at temperature
1; TRL with GRPO's loss as it is by default. Rollouts/s are completions over wall time, the median of the steps after
the third: rlvf's with those that it generates in place of groups without variance. One JSON object on stdout.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

from infra.runs.metric_log import read_metrics

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-trl"
PROMPTS, SAMPLES, TOKENS, RATE = 32, 8, 40, 3e-4
WARM = 3  # first steps that are not counted


def environment(version: str) -> Path:
    """The Python that has this TRL beside our packages, installed if it is not there yet."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
    install = [python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt"]
    subprocess.run([*install, "-e", ROOT, f"trl=={version}"], check=True)
    return python


def ours(policy: str, steps: int, seed: int) -> float:
    """Rollouts/s of `rlvf train`."""
    options = {
        "policy": policy,
        "steps": steps,
        "held_out": 0,
        "seed": seed,
        "batch.prompts": PROMPTS,
        "batch.samples": SAMPLES,
        "sampling.max_tokens": TOKENS,
        "optimizer.lr": RATE,
    }
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [str(Path(sys.executable).with_name("rlvf")), "train", "--json", *given]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    paces = [line.metrics.get("perf/rollouts_per_second") for line in read_metrics(Path(said["run"]) / "metrics.jsonl")]
    return statistics.median([pace for pace in paces if pace is not None][WARM:])


def theirs(python: Path, policy: str, steps: int, seed: int) -> float:
    """Rollouts/s of TRL, by this file in its environment."""
    # -P: this file's folder would make `trl` this file
    command = [python, "-P", __file__, "--steps", str(steps), "--seed", str(seed), "--trainer", policy]
    last = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout.splitlines()[-1]
    return float(last)


def train(policy: str, steps: int, seed: int) -> float:
    """Rollouts/s of GRPOTrainer, in its environment."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from rl.model.prompting import prompt_tokens
    from rl.problems.made.arithmetic import stream
    from rl.records import Problem
    from rl.verifiers.table import TABLE

    verify = TABLE["arithmetic"].verify
    tokenizer = AutoTokenizer.from_pretrained(policy)
    problems = list(islice(stream(seed, 0), PROMPTS * (steps + 1)))
    rows = [
        {"prompt": tokenizer.decode(prompt_tokens(tokenizer, problem.prompt)), "target": problem.target}
        for problem in problems
    ]

    def reward(completions: list[str], target: list[str], **_: Any) -> list[float]:
        pairs = zip(target, completions, strict=True)
        return [verify(Problem("", answer, "trl"), said).reward for answer, said in pairs]

    ended: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ended.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            per_device_train_batch_size=PROMPTS * SAMPLES,
            num_generations=SAMPLES,
            max_completion_length=TOKENS,
            learning_rate=RATE,
            max_steps=steps,
            temperature=1.0,
            top_k=0,
            seed=seed,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            policy, reward, args=settings, train_dataset=Dataset.from_list(rows), processing_class=tokenizer
        )
        trainer.add_callback(Clock())
        trainer.train()
    taken = [after - before for before, after in zip(ended[WARM - 1 :], ended[WARM:], strict=False)]
    return PROMPTS * SAMPLES / statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--trl", default="1.16.0", help="its version")
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.trainer:
        print(train(given.trainer, given.steps, given.seed))
        return
    python = environment(given.trl)
    sft = subprocess.run(
        [str(Path(sys.executable).with_name("rlvf")), "sft", "--json"], check=True, stdout=subprocess.PIPE
    )
    policy = json.loads(sft.stdout)["policy"]
    turns = []
    for seed in range(given.turns):
        turn = {"rlvf": ours(policy, given.steps, seed), "trl": theirs(python, policy, given.steps, seed)}
        turns.append(
            {**{name: round(pace) for name, pace in turn.items()}, "ratio": round(turn["rlvf"] / turn["trl"], 2)}
        )
        print(turns[-1], file=sys.stderr, flush=True)
    ratio = statistics.median(turn["ratio"] for turn in turns)
    print(json.dumps({"trl": given.trl, "cores": os.cpu_count(), "turns": turns, "ratio": ratio}))


if __name__ == "__main__":
    main()
