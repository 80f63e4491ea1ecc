"""The table of docs/models.md: small random models of the architectures that people train, each driven or refused.

python -m tests.bench.parity [--device cuda]    prints it
"""

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import transformers

from rl.config import PolicyConfig
from rl.loading.parity import LIST, measure
from rl.loading.policy import load_policy
from rl.model.policy import UnknownModelError
from rl.model.tiny import build_tokenizer
from tests.bench.architectures import ARCHITECTURES, Architecture, build


@dataclass(frozen=True)
class Finding:
    """What became of one of them."""

    name: str
    model: str  # its class
    gap: float | None  # nats; None: refused
    line: str  # why it was refused


def findings(chosen: tuple[Architecture, ...] = ARCHITECTURES, device: str = "cpu") -> Iterator[Finding]:
    """Each saved, loaded as a run would load it, and measured."""
    tokenizer, config = build_tokenizer(), PolicyConfig.model_validate({"device": device})
    for architecture in chosen:
        with tempfile.TemporaryDirectory() as folder:
            model = build(architecture, len(tokenizer))
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            try:
                policy = load_policy(folder, config, master=True)
            except UnknownModelError as error:
                yield Finding(architecture.name, type(model).__name__, None, str(error).partition(": ")[2])
            else:
                yield Finding(architecture.name, type(model).__name__, measure(policy).gap, "")


def table(found: Sequence[Finding]) -> list[str]:
    """The lines of a Markdown table."""
    rows = []
    for one in found:
        verdict = f"refused: {one.line.removesuffix(f'; {LIST}')}" if one.gap is None else f"agrees, {one.gap:.0e}"
        rows.append(f"| {one.name} | `{one.model}` | {verdict} |")
    return ["| architecture | class in transformers | log-probs, nats |", "| --- | --- | --- |", *rows]


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(*table(list(findings(device=given.device))), sep="\n")
