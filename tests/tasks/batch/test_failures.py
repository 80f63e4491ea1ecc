from math import nan
from types import SimpleNamespace
from typing import Any

import pytest

import tasks.evaluate
from infra.weights.version import PolicyVersion
from rl.config import PolicyConfig, SamplingConfig
from rl.judging import BrokenVerifierError, Judgement
from rl.records import Problem, Verdict
from rl.verifiers.verdicts import NOT_TRIED
from tasks.batch.failures import Failures
from tasks.calls.generator import Generator
from tasks.sets.problem_set import ProblemSet


def judgement(right: int, failed: int) -> Judgement:
    verdicts = [Verdict(1.0, "right")] * right + [Verdict(nan, "verifier_error", error="r.py:2: no")] * failed
    return Judgement.of([verdicts])


def test_failures_are_told_when_they_begin_and_then_by_their_order_of_magnitude() -> None:
    said: list[str] = []
    failures = Failures(said.append)
    failures.saw(judgement(8, 0))
    assert said == []
    failures.saw(judgement(7, 1))
    assert said == ["1 of 16 completions could not be judged so far: r.py:2: no"]
    for _ in range(1000):  # an occasional failure at every step
        failures.saw(judgement(7, 1))
    assert [line.split()[0] for line in said] == ["1", "10", "100", "1000"]
    failures.saw(judgement(0, 9000))
    assert said[-1].startswith("10001 of 17016 completions")


def test_an_evaluation_ends_where_its_verifier_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    seen: list[Judgement] = []

    def judged(_dispatch: Any, lease: int, _verifiers: Any) -> Judgement:
        asked.append(lease)
        hung = [Verdict(nan, "timeout", error="slow"), Verdict(nan, NOT_TRIED, error="16 times in a row")]
        return Judgement.of([hung if lease else [Verdict(1.0, "right")] * 2])

    monkeypatch.setattr(tasks.evaluate, "judged", judged)
    problems = ProblemSet("p", lambda *_: [], (Problem("", "", ""),) * 200, {})
    dispatch = SimpleNamespace(lease=lambda *_, **__: ((lease, lease) for lease in range(4)))
    spec = Generator(PolicyConfig(), SamplingConfig(), 2, 0)
    with pytest.raises(BrokenVerifierError, match=r"^the evaluation was stopped: 16 times in a row$"):
        tasks.evaluate.evaluate.fn(dispatch, spec, PolicyVersion(0, "", ""), problems, saw=seen.append)  # type: ignore[arg-type]
    assert (asked, len(seen)) == ([0, 1], 2)
