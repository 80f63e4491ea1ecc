"""Every verifier keeps one contract and is found by its name; a built-in one is one file."""

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from rl.config import VERIFIERS
from rl.records import Problem
from rl.verifiers.contract import FUNCTION, SERVICE
from rl.verifiers.opened import opened
from rl.verifiers.spec import VerifierSpec
from rl.verifiers.table import TABLE, declared

ROOT = Path(__file__).parents[3]
FUNCTION_TEXT = "def reward(problem, completion): return float(problem.target in completion)"
ASKED = {
    "arithmetic": ("40 + 2", "42", {}),
    "countdown": ("42", "6 * 7", {"numbers": [6, 7]}),
    "gsm8k": ("42", "#### 42", {}),
    "functions": ('{"name": "f", "arguments": {"a": 1}}', "f(a=1)", {}),
    "math": ("42", r"\boxed{42}", {}),
    "reasoning_gym": ("3", "<answer>3</answer>", {"task": "gcd", "seed": 0, "index": 0}),
    "r.py:reward": ("42", "it is 42", {}),
}
PROMPTS = {
    "reasoning_gym": "Find the Greatest Common Divisor (GCD) of these numbers: 777, 912. Give only the GCD as your "
    "final answer."
}


def needs_package(name: str) -> None:
    """Skip where a verifier's package is not installed."""
    package = declared(name).package
    if package and find_spec(package) is None:
        pytest.skip(f"needs {package}: install the extra '{name}'")


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(ASKED))
def test_one_that_is_built_in_and_one_of_the_users_are_asked_alike(name: str) -> None:
    needs_package(name)
    target, completion, extra = ASKED[name]
    spec = VerifierSpec(name=name, seconds=30, text=FUNCTION_TEXT if name.endswith("reward") else "")
    verifier = opened(spec)
    problem = Problem(PROMPTS.get(name, ""), target, "here", extra)
    spec.declared.check(problem)
    verifier.warm()
    right, empty = verifier.judge([problem, problem], [completion, ""])
    assert (right.reward, empty.reward, right.error, empty.error) == (1, 0, "", "")
    assert (spec.declared.instructions is not None) == (name in TABLE)


def test_each_name_is_found_in_the_table() -> None:
    without = sorted({*VERIFIERS} - ASKED.keys())
    assert without == [], f"add what {', '.join(without)} is asked, and a right answer, to ASKED"
    assert set(ASKED) == {*VERIFIERS, "r.py:reward"}
    assert declared("my_reward.py:reward") is FUNCTION
    assert declared("https://127.0.0.1:8900") is SERVICE
    for name in VERIFIERS:
        assert TABLE[name].instructions is not None
        assert bool(TABLE[name].verify) != bool(TABLE[name].module)


def test_the_page_on_verifiers_has_a_row_for_each() -> None:
    page = (ROOT / "docs" / "verifiers.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([a-z0-9_]+)` \| ", page, re.MULTILINE)) == set(VERIFIERS)


@pytest.mark.slow
@pytest.mark.parametrize("name", VERIFIERS)
def test_the_source_of_a_built_in_one_is_every_file_of_ours_that_it_judges_by(name: str) -> None:
    needs_package(name)
    modules = [f"rl.verifiers.built_in.{name}", *filter(None, [TABLE[name].module])]
    program = (
        f"import sys, {', '.join(modules)}; print(*(m.__file__ for n, m in sys.modules.items() if n[:3] == 'rl.'))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = {Path(file) for file in done.stdout.split()}
    judging = [file for file in loaded if file.name not in ("__init__.py", "records.py", "contract.py")]
    source = VerifierSpec(name=name).source
    texts = [file.read_text("utf-8") for file in judging]
    texts += [text for file in loaded - {*judging} if (text := file.read_text("utf-8")) in source]  # of rooms
    assert len(texts) >= 3
    assert [text for text in texts if text not in source] == []
    assert len(source) == sum(map(len, texts))


def test_the_source_of_a_users_file_is_its_text_and_a_service_has_none() -> None:
    assert VerifierSpec(name="my_reward.py:reward", text="def reward(): ...").source == "def reward(): ..."
    assert VerifierSpec(name="https://127.0.0.1:8900").source == ""


SHOUT = Path(__file__).with_name("shout.py")
USED = """
import sys
from flows.cli import main
from flows.config import TrainConfig
from flows.start import defaults
from rl.config import ProblemsConfig, VerifierConfig
from rl.verifiers.spec import VerifierSpec
from tasks.sets.problem_set import problems_to_solve
print(VerifierSpec(name="shout").source == open("rl/verifiers/built_in/shout.py").read())
problems = problems_to_solve((ProblemsConfig(path="q.jsonl"),), VerifierConfig(name="shout"), 0, 0)
print(problems.held_out[0].instructions.system)
defaults.parameters = lambda model: 10**9
print(*defaults.with_defaults(TrainConfig(problems={"path": "q.jsonl", "verifier": "shout"}))[1])
sys.argv = ["rlvf", "verify", "shout", "--problems", "q.jsonl", "--completion", "HEY", "--completion", "hey"]
sys.exit(main())
"""


def test_a_file_more_is_a_verifier_more(tmp_path: Path) -> None:
    for package in ("flows", "tasks", "rl", "infra"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SHOUT, tmp_path / "rl" / "verifiers" / "built_in")
    (tmp_path / "q.jsonl").write_text('{"prompt": "Say hey.", "target": "hey"}\n')
    done = subprocess.run(
        [sys.executable, "-c", USED],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "RLVF_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["True", "Shout."]
    assert "sampling.max_tokens 16: for the verifier shout" in done.stdout
    assert "quiet" in done.stdout
    assert "right" in done.stdout
