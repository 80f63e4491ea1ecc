"""What is judged of completions that were cut."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl.records import Problem, Rollouts
from rl.verifiers.spec import VerifierSpec
from tasks import verify
from tests.tasks.batches import problem_set
from tests.tasks.here import Here

RAMBLING = "so it is #### 42 and then again " * 3


def judged(spec: VerifierSpec, target: str, texts: list[str], ended: list[bool]) -> Any:
    problem = Problem("", target, "test", set="q")
    rollouts = Rollouts.padded([problem], [[0]], [[0]] * len(texts), ended=ended, texts=texts)
    return verify.judged(Here(), rollouts, replace(problem_set(), verifiers={"q": spec}))  # type: ignore[arg-type]


def test_an_answer_that_was_cut_is_none() -> None:
    found = judged(VerifierSpec(name="gsm8k"), "4", ["#### 4", "#### 4", "#### 5"], [True, False, True])
    assert found.rewards.tolist() == [[1, 0, 0]]
    assert found.rewards.dtype == np.float32
    assert found.reasons == (("right", "truncated", "wrong_value"),)
    assert judged(VerifierSpec(name="gsm8k"), "42", [RAMBLING], [False]).rewards.tolist() == [[0]]
    for name, target, text in (("arithmetic", "3 + 4", "7"), ("countdown", "7", "7")):
        assert judged(VerifierSpec(name=name), target, [text], [False]).reasons == (("truncated",),)


@pytest.mark.parametrize(("truncated", "reward"), [("auto", 0.0), ("zero", 0.0), ("judged", 1.0)])
def test_what_a_truncated_completion_is_worth_is_an_option(truncated: str, reward: float) -> None:
    found = judged(VerifierSpec(name="gsm8k", truncated=truncated), "4", ["#### 4"], [False])
    assert found.rewards.tolist() == [[reward]]


def test_a_function_of_the_users_judges_truncated_completions_unless_it_is_told_not_to() -> None:
    own = {name: VerifierSpec(name="my.py:reward", truncated=name).needs_end for name in ("auto", "zero", "judged")}
    assert own == {"auto": False, "zero": True, "judged": False}
