"""Judging groups of completions of several sets.

P problems, G completions of each.
"""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rl.judging import PARTS, Judgement, judge, warm
from rl.records import Problem, Verdict
from rl.verifiers import service
from rl.verifiers.opened import KEPT
from rl.verifiers.service import Service
from rl.verifiers.spec import VerifierError, VerifierSpec, check_source
from tests.conftest import free_port

REWARD = """
def reward(problem, completion):
    if completion == "bad":
        raise KeyError("no")
    return {"format": 0.25, "right": 0.75 * (completion == problem.target)}
"""


def test_of_very_many_parts_those_are_logged_that_most_completions_have() -> None:
    verdicts = [[Verdict(1.0, "right", {f"own_{n}_{k}": 0.5 for k in range(9)} | {"format": 1.0})] for n in range(8)]
    judgement = Judgement.of(verdicts)
    assert len(judgement.parts) == 73
    assert len(judgement.usual_parts) == PARTS
    assert judgement.usual_parts["format"].tolist() == [[1]] * 8


def test_each_set_is_judged_by_its_own_verifier_and_order_is_kept() -> None:
    own = VerifierSpec(name="my_reward.py:reward", seconds=5.0, memory_mb=512, text=REWARD)
    verifiers = {"sums": VerifierSpec(name="arithmetic"), "gsm": VerifierSpec(name="gsm8k"), "own": own}
    problems = [
        Problem("", "3", "a", set="own"),
        Problem("", "1 + 2", "b", set="sums"),
        Problem("", "#### 3", "c", set="gsm"),
        Problem("", "x", "d", set="own"),
    ]
    found = judge(problems, [["3", "bad"], ["3", "4"], ["#### 3", "3"], ["x", "3"]], verifiers)
    assert np.array_equal(found.rewards, [[1, np.nan], [1, 0], [1, 0], [1, 0.25]], equal_nan=True)
    assert found.reasons == (
        ("right", "verifier_error"),
        ("right", "wrong_value"),
        ("right", "no_answer"),
        ("right", "graded"),
    )
    assert found.errors == ("my_reward.py:4: KeyError: 'no'",)
    nan = np.nan
    assert np.array_equal(found.parts["format"], [[0.25, nan], [nan, nan], [1, 0], [0.25, 0.25]], equal_nan=True)
    assert np.array_equal(found.parts["right"], [[0.75, nan], [nan, nan], [1, 0], [0.75, 0]], equal_nan=True)


@pytest.mark.slow
def test_a_verifier_stays_open_beside_many_others_until_its_text_was_edited_often() -> None:
    text = "told = []\ndef reward(problem, completion):\n    told.append(1)\n    return {version} + len(told)\n"

    def said(name: str, version: int) -> float:
        own = VerifierSpec(name=f"{name}.py:reward", seconds=60.0, memory_mb=512, text=text.format(version=version))
        return float(judge([Problem("", "", "a", set="own")], [["x"]], {"own": own}).rewards[0, 0])

    names = [f"kept{number}" for number in range(KEPT + 2)]
    assert [said(name, 0) for name in names] == [1] * len(names)
    assert [said(name, 0) for name in names] == [2] * len(names)
    assert [said(names[0], version) for version in range(10, 10 * KEPT + 10, 10)] == [11, 21, 31, 41]
    assert said(names[0], 20) == 22
    assert said(names[0], 0) == 1  # opened anew
    assert said(names[1], 0) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("worth", "rewards"), [(None, [1, np.nan, np.nan]), (0.0, [1, 0, np.nan]), (-0.5, [1, -0.5, np.nan])]
)
def test_a_time_out_is_worth_what_was_asked_for_and_other_failures_nothing(
    worth: float | None, rewards: list[float]
) -> None:
    text = """
import time
def reward(problem, completion):
    if completion == "slow":
        time.sleep(60)
    return 1 / int(completion)
"""
    spec = VerifierSpec(name="slow.py:reward", seconds=1.0, memory_mb=512, text=text, timeout_reward=worth)
    found = judge([Problem("", "", "s:1")], [["1", "slow", "0"]], {"": spec})
    assert np.array_equal(found.rewards, [rewards], equal_nan=True)
    assert found.reasons[0][1:] == ("timeout", "verifier_error")
    assert len(found.errors) == (2 if worth is None else 1)


def test_a_broken_problem_is_an_error_and_no_wrong_answer() -> None:
    found = judge([Problem("", "many", "p.csv:2")], [["1"]], {"": VerifierSpec(name="gsm8k")})
    assert found.reasons == (("broken_problem",),)
    assert np.isnan(found.rewards).all()
    assert "p.csv:2" in found.errors[0]


def test_judgements_are_joined_and_parts_that_one_lacks_are_unknown() -> None:
    with_part = Judgement(
        np.ones((1, 2), np.float32), (("a", "a"),), {"x": np.ones((1, 2), np.float32)}, (("e1", "e2"),)
    )
    without = Judgement(np.zeros((2, 2), np.float32), (("b", "b"),) * 2, {}, (("e2", "e3"), ("", "e1")))
    joined = Judgement.join([with_part, without])
    assert joined.rewards.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert joined.reasons == (("a", "a"), ("b", "b"), ("b", "b"))
    assert np.isnan(joined.parts["x"]).tolist() == [[False] * 2, [True] * 2, [True] * 2]
    assert joined.errors == ("e1", "e2", "e3")


def test_what_lacks_its_end_is_worth_nothing_whatever_its_verifier_said_or_failed_to_say() -> None:
    nan = np.nan
    judged = Judgement(
        np.array([[1, nan], [nan, 1]], np.float32),
        (("right", "timeout"), ("timeout", "right")),
        {"format": np.array([[1, nan], [nan, 1]], np.float32)},
        (("", "too slow"), ("too slow", "")),
    )
    found = judged.without_ends(np.array([[True, True], [False, False]]))
    assert np.array_equal(found.rewards, [[0, 0], [nan, 1]], equal_nan=True)
    assert found.reasons == (("truncated", "truncated"), ("timeout", "right"))
    assert np.array_equal(found.parts["format"], [[0, nan], [nan, 1]], equal_nan=True)
    assert found.messages == (("", ""), ("too slow", ""))
    assert found.errors == ("too slow",)


def test_one_that_never_worked_here_is_no_fault_of_the_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BACK_OFF", 0.0)
    away = VerifierSpec(name=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(VerifierError, match="cannot be reached"):
        judge([Problem("", "1", "s:1")], [["1"]], {"": away})
    lacking = VerifierSpec(
        name="lacking.py:reward", seconds=5.0, memory_mb=512, text="import no_such_module\ndef reward(p, c): return 1\n"
    )
    with pytest.raises(VerifierError, match="no_such_module"):
        judge([Problem("", "1", "s:1")], [["1"]], {"": lacking})


def test_one_that_has_worked_here_and_is_away_fails_on_the_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BACK_OFF", 0.0)
    once = VerifierSpec(name=f"http://127.0.0.1:{free_port()}")
    with monkeypatch.context() as patch:
        patch.setattr(Service, "warm", lambda _: None)
        judge([Problem("", "1", "s:1")], [["1"]], {"": once})
    found = judge([Problem("", "1", "s:1")], [["1"]], {"": once})
    assert found.reasons == (("service_error",),)
    assert found.broken


@pytest.mark.slow
def test_a_verifier_that_cannot_work_is_told_before_it_is_needed() -> None:
    own = VerifierSpec(name="ok.py:reward", seconds=5.0, memory_mb=512, text=REWARD)
    problems = [Problem("", "many", "a:1", set="own"), Problem("", "x", "a:2", set="own")]
    (note,) = warm({"gsm": VerifierSpec(name="gsm8k"), "own": own}, problems)
    assert note.startswith("verifier ok.py:reward: sandbox ")
    with pytest.raises(VerifierError, match="no_such_module"):
        warm(
            {
                "a": VerifierSpec(
                    name="r.py:reward",
                    seconds=5.0,
                    memory_mb=512,
                    text="import no_such_module\ndef reward(p, c): return 1\n",
                )
            }
        )
    with pytest.raises(VerifierError, match="called as reward"):
        warm({"a": VerifierSpec(name="r.py:reward", seconds=5.0, memory_mb=512, text="def reward(p): return 1\n")})
    always = VerifierSpec(
        name="r.py:reward", seconds=5.0, memory_mb=512, text="def reward(p, c):\n    return p.extra['level']\n"
    )
    warm({"own": always})
    with pytest.raises(VerifierError, match=r"r\.py:2: KeyError: 'level' .*tried on a:1"):
        warm({"own": always}, problems)
    empty = VerifierSpec(
        name="r.py:reward", seconds=5.0, memory_mb=512, text="def reward(p, c):\n    return 1 / len(c)\n"
    )
    warm({"own": empty}, problems)  # it fails now and then: no reason to refuse it


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def reward(p, c) return 1\n", "verifier d/r.py:1: "),
        ("def rewards(p, c): return 1\n", "verifier d/r.py: no function 'reward'; it has rewards; write: def reward("),
        ("", "verifier d/r.py: no function 'reward'; it has no function"),
        ("async def reward(p, c): return 1\n", "verifier d/r.py:1: reward is async; write a plain def"),
        ("\0", "verifier d/r.py"),
        ("(" * 10**5, "verifier d/r.py"),
    ],
)
def test_a_file_without_the_function_is_refused_unrun(text: str, says: str) -> None:
    with pytest.raises(VerifierError) as refused:
        check_source("d/r.py:reward", text)
    assert str(refused.value).startswith(says)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("text", ["reward = print\n", "from os import getpid as reward\n", "from x import *\n"])
def test_a_function_may_come_from_elsewhere(text: str) -> None:
    check_source("r.py:reward", text)


def test_a_judge_needs_none_of_the_heavy_libraries() -> None:
    heavy = {"torch", "transformers", "prefect", "mlflow", "pandas", "pyarrow", "fastapi", "httpx", "distributed"}
    code = f"import sys, tasks.judge; print({heavy!r} & sys.modules.keys())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
