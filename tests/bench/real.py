"""`rlvf train` of a model of real size, whole and by LoRA: seconds of a step, and the peak memory of each process.

    python tests/bench/real.py --problems gsm8k_train.jsonl [--shape 0.6B] [--steps 3] [--tokens 256] [-- OPTIONS]

The model has random weights: a Qwen3 of 153M parameters (hidden 512, 24 layers), or of the shape of Qwen3-0.6B, with
Qwen3's vocabulary of 151,936, and a byte-level BPE tokenizer trained on the file's questions and answers. Its
completions are noise, which gsm8k would judge alike; the reward is the share of letters among their characters. One
generator and one trainer, 4 prompts x 8 completions a step; OPTIONS go to `rlvf train`. Linux, whose kernel keeps each
process's peak. One JSON object on stdout.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from infra.runs.metric_log import read_metrics

POLL_SECONDS = 0.2
VOCABULARY, MERGES = 151_936, 16_000
END = "<|im_end|>"
REWARD = """
def reward(problem, completion):
    return sum(map(str.isalpha, completion)) / max(1, len(completion))
"""
SHAPES: dict[str, dict[str, int]] = {
    "150M": {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 24, "head_dim": 64}
    | {"num_attention_heads": 8, "num_key_value_heads": 4},
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "head_dim": 128}
    | {"num_attention_heads": 16, "num_key_value_heads": 8},
}
METHODS = {"full": [], "lora": ["--policy.lora.rank", "16"]}


def build(folder: Path, problems: Path, shape: dict[str, int]) -> int:
    """Write the model into the folder; returns its parameters."""
    rows = [json.loads(line) for line in problems.read_text().splitlines()]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    special = trainers.BpeTrainer(
        vocab_size=MERGES,
        special_tokens=["<|endoftext|>", END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((text for row in rows for text in row.values()), special)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=END, pad_token="<|endoftext|>")
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCABULARY,
            **shape,
            tie_word_embeddings=True,
            max_position_embeddings=4096,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            dtype=torch.bfloat16,
        )
    )
    model.to(torch.bfloat16).save_pretrained(folder)  # type: ignore[arg-type]  # transformers wraps it
    return sum(parameter.numel() for parameter in model.parameters())


def process_name(process: psutil.Process) -> str:
    """The worker whose log the process writes, or what it runs."""
    with suppress(OSError):
        log = Path(f"/proc/{process.pid}/fd/1").readlink()
        if log.suffix == ".log" and log.stem not in ("prefect", "mlflow"):
            return log.stem
    words = " ".join(process.cmdline())
    return next((name for name in ("prefect", "mlflow", "resource_tracker") if name in words), "flow")


def peaks(root: psutil.Process) -> dict[str, float]:
    """GB that each process below has held at most so far, by name; of several of one name the largest."""
    found: dict[str, float] = {}
    for process in [root, *root.children(recursive=True)]:
        with suppress(psutil.Error, OSError, TypeError):
            peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
            name = process_name(process)
            found[name] = max(found.get(name, 0.0), int(peak[1]) * 1024 / 1e9)  # type: ignore[index]  # TypeError: it has ended
    return found


def measure(method: str, folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """One run of the command."""
    reward = folder / "reward.py"
    reward.write_text(REWARD)
    options = {
        "policy": folder / "model",
        "problems": given.problems,
        "verifier": f"{reward}:reward",
        "steps": given.steps,
        "held_out": 0,
        "batch.prompts": 4,
        "batch.samples": 8,
        "sampling.max_tokens": given.tokens,
        "cluster.threads": 1,
    }
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [str(Path(sys.executable).with_name("rlvf")), "train", "--json", *words, *METHODS[method], *given.options]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    root, most = psutil.Process(child.pid), dict[str, float]()
    while child.poll() is None:
        for name, peak in peaks(root).items():
            most[name] = max(most.get(name, 0.0), peak)
        time.sleep(POLL_SECONDS)
    assert child.stdout is not None
    if child.returncode:
        sys.exit(f"{' '.join(command)} ended with {child.returncode}")
    run = Path(json.loads(child.stdout.read())["run"])
    steps = [line.metrics for line in read_metrics(run / "metrics.jsonl")]
    seconds = [step["perf/step_seconds"] for step in steps if "perf/step_seconds" in step]
    published = [step["sync/bytes"] for step in steps if "sync/bytes" in step]  # the first of them is the whole model
    return {
        "method": method,
        "step_seconds": round(statistics.median(seconds), 1),
        "published_mb": round(statistics.median(published[1:]) / 1e6, 2),
        "peak_gb": {name: round(peak, 2) for name, peak in sorted(most.items())},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=Path, required=True, help="JSON Lines: question, answer")
    parser.add_argument("--shape", choices=SHAPES, default="150M")
    parser.add_argument("--layers", type=int, help="in place of the shape's")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256, help="new tokens of a completion")
    parser.add_argument("--methods", default=",".join(METHODS), help=f"of {', '.join(METHODS)}")
    parser.add_argument("options", nargs="*", help="of rlvf train, behind --")
    given = parser.parse_args()
    given.problems = given.problems.resolve()
    shape = SHAPES[given.shape] | ({"num_hidden_layers": given.layers} if given.layers else {})
    runs = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        parameters = build(folder / "model", given.problems, shape)
        for method in given.methods.split(","):
            runs.append(measure(method, folder, given))
            print(runs[-1], file=sys.stderr, flush=True)
    print(json.dumps({"parameters": parameters, "steps": given.steps, "tokens": given.tokens, "runs": runs}))


if __name__ == "__main__":
    main()
