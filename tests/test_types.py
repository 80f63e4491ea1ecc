"""A type checker follows a call from the flow into the worker."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CALLS = """
from collections.abc import Sequence
from infra.dispatch.dispatch import Dispatch
from infra.weights.version import PolicyVersion
from rl.records import Batch, Problem
from rl.verifiers.spec import VerifierSpec
from tasks.calls.generator import Arguments, Generator, prefetch
from tasks.calls.trainer import Trainer
from tasks.judge import judge

def of(
    dispatch: Dispatch, trainer: Trainer, generator: Generator, version: PolicyVersion, batch: Batch,
    problems: tuple[Problem, ...], texts: tuple[tuple[str, ...], ...], verifiers: dict[str, VerifierSpec],
) -> None:
    dispatch.run("train", trainer.advance, 3, batch, {"reward/mean": 0.5})
    dispatch.run("train", trainer.publish, 3, background="publish")
    items: Sequence[Arguments] = [(version, 3, range(2), problems, None)]
    dispatch.lease("generate", generator.generate, items)
    dispatch.lease("verify", judge, [(problems, texts, verifiers)])
    dispatch.tell("generate", prefetch, version, trainer.fence)
    made: int = dispatch.run("train", trainer.advance, 3, batch, {}).step

    dispatch.run("train", trainer.advance, batch, 3, {})  # wrong
    dispatch.run("train", trainer.advance, 3, batch)  # wrong
    dispatch.run("train", trainer.publish, version, background="publish")  # wrong
    dispatch.lease("generate", generator.generate, [(3, version, range(2), problems, None)])  # wrong
    dispatch.lease("verify", judge, [(texts, problems, verifiers)])  # wrong
    dispatch.tell("generate", prefetch, 3, trainer.fence)  # wrong
    reward: float = dispatch.run("train", trainer.advance, 3, batch, {})  # wrong
"""


@pytest.mark.slow  # a whole run of mypy, which `make check` is too
def test_a_wrong_argument_of_a_call_on_a_worker_is_a_type_error(tmp_path: Path) -> None:
    source = tmp_path / "calls.py"
    source.write_text(CALLS)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), str(source)],
        cwd=ROOT, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    found = {int(line) for line in re.findall(r"calls\.py:(\d+): error", done.stdout)}
    assert found == {at for at, line in enumerate(CALLS.splitlines(), 1) if line.endswith("# wrong")}, done.stdout
