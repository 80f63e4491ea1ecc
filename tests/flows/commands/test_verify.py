"""`rlvf verify`, and what `rlvf train` tries of a reward before anything starts."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.cli import main

pytestmark = pytest.mark.usefixtures("own_signals_and_environment")
Run = Callable[..., subprocess.CompletedProcess[str]]


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "RLVF_HOME": str(folder / "home")}
    program = [sys.executable, "-c", "from flows.cli import main; main()", *words]
    return subprocess.run(program, cwd=folder, env=env, capture_output=True, text=True, timeout=120)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """`command` in this process, which has imported the libraries already."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        monkeypatch.setattr("rl.verifiers.opened._kept", kept := {})  # the last command has closed its own
        code = 0
        try:
            main(words)
        except SystemExit as ended:
            code = int(ended.code or 0)
        for verifier in kept.values():
            verifier.close()
        return subprocess.CompletedProcess(words, code, *capfd.readouterr())

    return run


@pytest.mark.slow
def test_a_reward_is_tried_on_a_few_rows(tmp_path: Path, here: Run) -> None:
    (tmp_path / "r.py").write_text(
        "def reward(p, c):\n    print('saw', c)\n    return {'a': 0.25 * bool(c), 'b': 0.75 * (c == p.target)}\n"
    )
    rows = [{"prompt": f"q{i}", "target": str(i)} for i in range(9)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = command(tmp_path, "verify", "r.py:reward", "--problems", "p.jsonl", "--rows", "2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.rpartition("  ")[0] for line in lines] == [
        "p.jsonl:1  '0'  reward 1 (right)  a 0.25, b 0.75",
        "p.jsonl:1  ''  reward 0 (wrong)  a 0, b 0",
        "p.jsonl:2  '1'  reward 1 (right)  a 0.25, b 0.75",
        "p.jsonl:2  ''  reward 0 (wrong)  a 0, b 0",
    ]
    assert "verifier r.py:reward: sandbox " in done.stderr
    assert "saw 1" in (tmp_path / "home" / "logs" / "verifier-r.log").read_text()
    done = here("verify", "r.py:reward", "--problems", "p.jsonl", "--completion", "0", "--json")
    assert [json.loads(line)["reward"] for line in done.stdout.splitlines()] == [1.0, 0.25, 0.25]
    assert "outside of 0 to 1" not in done.stderr
    (tmp_path / "r.py").write_text("def reward(p, c):\n    return -5 * (not c)\n")
    assert "rewards outside of 0 to 1 train" in here("verify", "r.py:reward", "--rows", "1").stderr
    (tmp_path / "r.py").write_text("def reward(p, c):\n    return p.extra['x']\n")
    done = here("verify", "r.py:reward", "--problems", "p.jsonl", "--rows", "1")
    assert done.returncode == 1
    assert "p.jsonl:1  '0'  could not be judged: r.py:2: KeyError: 'x'" in done.stdout
    assert "2 of 2 completions could not be judged, all in the same way" in done.stderr
    # what fails alike on every line is said once; each way of failing is
    (tmp_path / "r.py").write_text(
        "import os\ndef reward(p, c):\n    if c: os._exit(3)\n    return p.extra['x'] if p.prompt > 'q0' else 1\n"
    )
    failing = ("verify", "r.py:reward", "--problems", "p.jsonl")
    done = here(*failing)
    assert [line.rpartition("  ")[0].partition("; log")[0] for line in done.stdout.splitlines()] == [
        "p.jsonl:1  '0'  could not be judged: r.py: reward ended its process with exit code 3 (p.jsonl:1)",
        "p.jsonl:1  ''  reward 1 (right)",
        "p.jsonl:2  ''  could not be judged: r.py:4: KeyError: 'x'",
    ]
    assert "5 of 6 completions could not be judged, in 2 ways: 3 and 2 of them\n" in done.stderr
    assert "RLVF_TRACEBACK" not in done.stderr  # it would show this command's, and the log has the function's
    assert len(here(*failing, "--json").stdout.splitlines()) == 6


@pytest.mark.slow
def test_countdown_is_tried_on_its_own_problems_of_which_no_target_is_an_answer(tmp_path: Path) -> None:
    done = command(tmp_path, "verify", "countdown", "--rows", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("countdown:0.0.")
    assert "none of these has reward 1: try a completion that should, by --completion\n" in done.stderr
    assert "--completion" not in command(tmp_path, "verify", "arithmetic", "--rows", "1").stderr
    asked = command(tmp_path, "verify", "arithmetic", "--problems", "countdown", "--rows", "1", "--completion", "1")
    assert "wrong_value" in asked.stdout, asked.stderr  # what is named judges, and not the set's own verifier


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nothing_here\ndef reward(p, c): return 1\n", "r.py:1: ModuleNotFoundError: No module named"),
        ("def reward(p): return 1\n", "r.py: TypeError: reward(p) is called as reward(problem, completion)"),
        ("def reward(p, c): return p.extra['x']\n", "r.py:1: KeyError: 'x'"),
        (
            "def reward(p, c): return p.target in c\n",
            "r.py:1: AttributeError: q.csv has no target column among ['input',",
        ),
    ],
)
def test_training_looks_at_a_reward_before_anything_starts(tmp_path: Path, here: Run, text: str, says: str) -> None:
    (tmp_path / "r.py").write_text(text)
    (tmp_path / "q.csv").write_text("input,output\nadd 1 and 2.,3\nadd 2 and 2.,4\n")
    own = ("--problems", "q.csv", "--problems.prompt", "input") if "q.csv" in says else ()
    done = here("train", "--verifier", "r.py:reward", *own)
    assert done.returncode == 2
    assert done.stderr.startswith(f"rlvf: {says}"), done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "home" / "runs").exists()
    assert not (tmp_path / "home" / "prefect").exists()  # no service was started
