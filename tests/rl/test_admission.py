"""What a generator returns is what was asked for, or is refused in words."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.admission import Asked, refusal, refused_audit, refused_judgement, refused_outcomes
from rl.audit import AuditScores
from rl.environments.episode import Outcome
from rl.judging import Judgement
from rl.records import Maker, Problem, Rollouts
from rl.slices import SoFar

PROBLEMS = (Problem("add 1 to 2", "1 + 2", "a:1"), Problem("add 2 to 2", "2 + 2", "a:2", {"level": 3}))
ASKED = Asked(PROBLEMS, samples=3, max_tokens=5, versions=range(4, 7), vocabulary=100)
PLAYED = tuple(replace(problem, played=True) for problem in PROBLEMS)
TURNS = replace(ASKED, problems=PLAYED, turns=True)
LENGTHS = np.array([[1, 4, 2], [3, 3, 1]], np.int32)
INSIDE = np.arange(4) < LENGTHS[:, :, None]


def rollouts(**other: Any) -> Rollouts:
    good = Rollouts(
        problems=PROBLEMS,
        prompts=(np.array([5, 6], np.int32), np.array([7], np.int32)),
        tokens=np.where(INSIDE, 99, 0).astype(np.int32),
        logprobs=np.where(INSIDE, -0.5, 0).astype(np.float32),
        versions=np.where(INSIDE, 6, 0).astype(np.int32),
        trained=INSIDE,
        lengths=LENGTHS,
        ended=np.ones((2, 3), np.bool_),
        texts=(("a", "b", ""), ("c", "d", "e")),
        seconds=0.5,
    )
    return replace(good, **other)


def put(array: str, value: float, at: tuple[int, int, int] = (0, 1, 3)) -> dict[str, Any]:
    changed = np.array(getattr(rollouts(), array))
    changed[at] = value
    return {array: changed}


def test_what_was_asked_for_is_taken() -> None:
    assert refusal(rollouts(), ASKED) == ""
    assert refusal(rollouts(**put("versions", 4, (0, 1, 0))), ASKED) == ""
    assert refusal(rollouts(**put("logprobs", 1e-6)), ASKED) == ""  # rounding
    assert refusal(rollouts(**put("tokens", 2**31 - 1)), replace(ASKED, vocabulary=None)) == ""
    assert refusal(rollouts(makers=(Maker(dtype="bfloat16"),) * 2), ASKED) == ""
    # what lies past a completion's end is nobody's
    assert refusal(rollouts(**put("logprobs", np.nan, (0, 0, 1))), ASKED) == ""


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"problems": PROBLEMS[::-1]}, "its problems are not those asked for"),
        ({"problems": PROBLEMS[:1]}, "its problems are not those asked for"),
        ({"tokens": None}, "tokens are NoneType, not integers [2, 3, T]"),
        ({"tokens": np.zeros((2, 2, 4), np.int32)}, "tokens are int32 [2, 2, 4], not integers [2, 3, T]"),
        ({"tokens": np.zeros((2, 3, 4), np.float32)}, "tokens are float32 [2, 3, 4], not integers [2, 3, T]"),
        ({"tokens": np.zeros((2, 3, 6), np.int32)}, "completions have 6 tokens, not 1 to 5"),
        ({"tokens": np.zeros((2, 3, 0), np.int32)}, "completions have 0 tokens, not 1 to 5"),
        ({"logprobs": np.zeros((2, 3, 3), np.float32)}, "logprobs are float32 [2, 3, 3], not [2, 3, 4]"),
        ({"versions": np.zeros((2, 3, 4), object)}, "versions are object [2, 3, 4], not [2, 3, 4]"),
        ({"lengths": [[1, 4, 2], [3, 3, 1]]}, "lengths are list, not [2, 3]"),
        ({"ended": np.zeros((2, 3), np.int32)}, "ended are int32 [2, 3], not [2, 3]"),
        ({"prompts": (np.array([5], np.int32),)}, "its prompts are not token ids of 2 problems"),
        ({"prompts": (np.array([5], np.int32), np.array([], np.int32))}, "its prompts are not token ids of 2 problems"),
        ({"texts": (("a", "b"), ("c", "d"))}, "its texts are not 2 times 3"),
        ({"texts": (("a", "b", None), ("c", "d", "e"))}, "its texts are not 2 times 3"),
        ({"makers": (Maker(dtype="float32"),)}, "its makers are not those of 2 problems"),
        ({"makers": ("float32", "float32")}, "its makers are not those of 2 problems"),
        ({"makers": (Maker(dtype="a/b c"),) * 2}, "its makers are not those of 2 problems"),
        ({"seconds": float("nan")}, "it took nan seconds"),
        ({"lengths": np.array([[0, 4, 2], [3, 3, 1]], np.int32)}, "a completion has 0 of 4 tokens"),
        ({"lengths": np.array([[1, 5, 2], [3, 3, 1]], np.int32)}, "a completion has 5 of 4 tokens"),
        (put("tokens", 100), "token id 100 is not in the vocabulary, 0 to 99"),
        (put("tokens", -1), "token id -1 is not in the vocabulary, 0 to 99"),
        ({"prompts": (np.array([5], np.int32), np.array([100], np.int32))}, "token id 100 is not in the vocabulary"),
        (put("logprobs", np.nan), "a log-prob is nan"),
        (put("logprobs", -np.inf), "a log-prob is -inf"),
        (put("logprobs", 0.1), "a log-prob is 0.1"),
        ({"logprobs": np.where(INSIDE, -1e300, 0)}, "a log-prob is -inf"),
        ({"seconds": 10**40}, "it took 1000"),
        ({"problems": (np.zeros(3), np.zeros(3))}, "it cannot be read (ValueError)"),
        (put("versions", 3), "a token was sampled with v3, not with v4 to v6"),
        (put("versions", 7), "a token was sampled with v7, not with v4 to v6"),
        (put("versions", 4), "a token was sampled with an older version than the one before it"),
        ({"trained": np.ones((2, 3, 4), np.int32)}, "trained are int32 [2, 3, 4], not [2, 3, 4]"),
        ({"trained": np.ones((2, 3, 4), np.bool_)}, "a token past a completion's end is marked as the policy's"),
        (put("trained", False), "a token is not marked as the policy's, which has written all"),
        ({"trained": np.zeros((2, 3, 4), np.bool_)}, "it has drawn no token"),
        ({"ended": np.zeros((2, 3), np.bool_)}, "a completion is not over, and has not 5 tokens"),
    ],
)
def test_everything_else_is_refused_in_words(other: dict[str, Any], why: str) -> None:
    found = refusal(rollouts(**other), ASKED)
    assert found.startswith(why)
    assert "\n" not in found


def test_observations_come_first_where_they_were_given_and_have_no_log_prob() -> None:
    given = tuple(("seen",) if at == 1 else () for at in range(6))
    so_far = SoFar(rollouts().prompts, (np.array([7], np.int32),) * 6, (1,) * 6, given)
    turns = (('"said"',) * 3,) * 2
    asked, first = replace(TURNS, so_far=so_far), (0, 1, 0)
    observed = {**put("trained", False, first), "actions": turns, "problems": PLAYED}
    silent = put("logprobs", 0, first)
    assert refusal(rollouts(**observed, **silent), asked) == ""
    assert refusal(rollouts(**observed, **silent, **put("versions", 99, first)), asked) == ""
    # versions rise across it all the same
    assert refusal(rollouts(**observed, **silent, **put("versions", 4, (0, 1, 2))), asked) == (
        "a token was sampled with an older version than the one before it"
    )
    assert refusal(rollouts(**observed), asked) == "an observation has a log-prob, -0.5"
    assert refusal(rollouts(**observed, **put("logprobs", np.nan, first)), asked).startswith("an observation has a log")
    assert refusal(rollouts(**observed, **put("tokens", 100, first)), asked).startswith("token id 100 is not in")
    second = {**observed, **put("trained", False, (0, 1, 1))}
    assert refusal(rollouts(**second), asked) == "an observation follows a token of the policy's"
    assert refusal(rollouts(actions=turns, problems=PLAYED), asked) == "observations are not where they were given"
    nothing = {"trained": np.zeros((2, 3, 4), np.bool_), "logprobs": np.zeros((2, 3, 4), np.float32)}
    assert refusal(rollouts(**nothing), ASKED) == "it has drawn no token"


@pytest.mark.parametrize(
    ("actions", "why"),
    [
        ((), "its actions are not 2 times 3"),
        ((("",) * 3,) * 2, "a turn that ended asks for nothing"),
        ((("no",) * 3,) * 2, "a turn asks for what is no action"),
        ((('{"unread": 1}',) * 3,) * 2, ""),
        ((('[{"name": "f"}]',) * 3,) * 2, "a turn asks for what is no action"),
        (None, "its actions are not 2 times 3"),
    ],
)
def test_a_turn_that_ended_asks_for_an_action(actions: Any, why: str) -> None:
    assert refusal(rollouts(actions=actions, problems=PLAYED), TURNS) == why
    assert refusal(rollouts(actions=actions), ASKED) == ("" if actions == () else "it has turns")


def test_a_completion_of_one_turn_beside_those_of_several_asks_for_nothing() -> None:
    beside = replace(TURNS, problems=(PROBLEMS[0], PLAYED[1]))
    said, silent = ('"said"',) * 3, ("",) * 3
    for actions, why in (
        ((silent, said), ""),
        ((said, said), "a completion of one turn asks for something"),
        ((silent, silent), "a turn that ended asks for nothing"),
    ):
        assert refusal(rollouts(actions=actions, problems=beside.problems), beside) == why


ANYTHING = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=3),
    st.builds(np.zeros, st.just((2, 3))),
)


@given(st.sampled_from(sorted(vars(rollouts()))), ANYTHING)
def test_no_nonsense_raises(name: str, nonsense: Any) -> None:
    assert refusal(nonsense, ASKED)
    if not (name == "seconds" and isinstance(nonsense, int)):
        assert refusal(rollouts(**{name: nonsense}), ASKED)


NAN = float("nan")
GOOD = Judgement(
    rewards=np.array([[1, NAN, 1e6], [-0.5, 0, 0]], np.float32),
    reasons=(("right", "timeout", "far"), ("near", "wrong", "wrong")),
    parts={"format": np.array([[1, NAN, NAN], [0, 0, 0]], np.float32)},
    messages=(("", "my.py: took longer", ""), ("", "", "")),
)


def test_what_lacks_a_part_is_refused() -> None:
    torn = rollouts()
    del torn.__dict__["tokens"]
    assert refusal(torn, ASKED) == "it cannot be read (AttributeError)"
    for worth in (10**40, 10**400, float("nan")):
        assert refused_outcomes([Outcome(reward=worth)], 1)
    assert refused_outcomes([Outcome(reward=-1e6)], 1) == ""


def test_verdicts_and_missing_ones_are_taken() -> None:
    assert refused_judgement(GOOD, 2, 3) == ""
    assert refused_judgement(replace(GOOD, parts={}), 2, 3) == ""
    nothing = replace(GOOD, rewards=np.full((2, 3), NAN, np.float32))
    assert refused_judgement(nothing, 2, 3) == ""


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"rewards": [[1, 0, 0], [1, 0, 0]]}, "rewards are list, not [2, 3]"),
        ({"rewards": np.zeros((2, 9), np.float32)}, "rewards are float32 [2, 9], not [2, 3]"),
        ({"rewards": np.zeros((2, 3), object)}, "rewards are object [2, 3], not [2, 3]"),
        ({"rewards": np.full((2, 3), np.inf, np.float32)}, "of rewards one is inf, beyond 1e+06"),
        ({"rewards": np.full((2, 3), -1e30, np.float32)}, "of rewards one is -1e+30, beyond 1e+06"),
        ({"reasons": (("right",) * 3,)}, "its reasons are not 2 times 3"),
        ({"reasons": ((1,) * 3,) * 2}, "its reasons are not 2 times 3"),
        ({"messages": ()}, "its messages are not 2 times 3"),
        ({"parts": None}, "its parts have no names that metrics can have"),
        ({"parts": {1: GOOD.rewards}}, "its parts have no names that metrics can have"),
        ({"parts": {"format": np.zeros(3, np.float32)}}, "the parts format are float32 [3], not [2, 3]"),
        ({"parts": {"format": np.full((2, 3), np.inf)}}, "of the parts format one is inf, beyond 1e+06"),
        ({"parts": {"a:b": GOOD.rewards}}, "its parts have no names that metrics can have"),
        ({"parts": {"mean": GOOD.rewards}}, "its parts have no names that metrics can have"),
        ({"parts": {f"p{at}": GOOD.rewards for at in range(97)}}, "it has 97 parts, more than 16 a completion"),
        ({"reasons": (("x" * 10_001, "", ""),) * 2}, "one of its reasons has 10001 characters, more than 10000"),
        ({"failed": None}, "it does not say whether it failed"),
    ],
)
def test_what_is_no_verdicts_is_refused_in_words(other: dict[str, Any], why: str) -> None:
    assert refused_judgement(replace(GOOD, **other), 2, 3) == why
    assert refused_judgement({"rewards": 1}, 2, 3) == "it is dict, and not a judgement"


def test_an_audit_is_scores_and_the_type_of_their_arithmetic() -> None:
    found = rollouts()
    assert refused_audit(AuditScores(found.logprobs, "float32"), found) == ""
    for other in (None, found.logprobs, AuditScores(found.logprobs, "a/b c"), AuditScores(found.logprobs, None)):  # type: ignore[arg-type]
        assert refused_audit(other, found).endswith(", and not scores with their type")
    several = replace(found, trained=put("trained", False)["trained"])
    assert refused_audit(AuditScores(found.logprobs, "float32"), several) == (
        "a score is -0.5 where the policy has written no token"
    )
    assert refused_audit(AuditScores(found.logprobs[:1], "float32"), found).startswith("scores are float32 [1, 3, 4]")
    assert refused_audit(AuditScores(found.logprobs * np.float32(np.nan), "float32"), found) == "a score is nan"
