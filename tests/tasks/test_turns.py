"""Episodes turn by turn: the tiny policy acts on an environment, whoever draws and whoever acts."""

from collections.abc import Iterator

import numpy as np
import pytest

from rl.environments import opened
from rl.environments.interface import Interface
from rl.environments.spec import EnvironmentSpec
from rl.environments.turn import ToolCall, as_json, of_json
from rl.model.policy import Policy
from rl.records import Problem
from rl.sampling.conversation import Conversation
from rl.sampling.prefix_cache import PrefixCache
from rl.sampling.scheduling import Draw
from tasks.batch.lease import Lease
from tasks.turns import judged_episodes
from tests.tasks.episodes import PROBLEMS, SAMPLES, SPEC, TEXT, Here, fresh_policy, played, rows, sorted_rows


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    """No process of an episode outlives this file."""
    yield
    opened.close(SPEC)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return fresh_policy()


def test_what_was_said_and_observed_is_what_the_tokens_say(policy: Policy) -> None:
    found = played(policy)
    counts = []
    for episode, tokens, own, logprobs, ended in rows(found):
        said, at = [], 0
        for action, outcome in episode.turns:
            end = next(i for i in range(at, len(tokens)) if own[i] and tokens[i] in policy.ends)
            assert policy.tokenizer.decode(tokens[at:end]) == action
            at = end + 1
            while at < len(tokens) and not own[at]:
                said.append(tokens[at])
                at += 1
            if at < len(tokens):
                assert policy.tokenizer.decode(said) == "\n".join(outcome.observations) + "\n"
            said = []
        of_policy = [message["content"] for message in episode.messages if message["role"] == "assistant"]
        assert of_policy[: len(episode.turns)] == [action for action, _ in episode.turns]
        assert "".join(of_policy[len(episode.turns) :]) == policy.tokenizer.decode(
            tokens[at:], skip_special_tokens=True
        )
        assert (np.array(logprobs)[~np.array(own)] == 0).all()
        assert ended == (at == len(tokens) and tokens[-1] in policy.ends and own[-1])
        counts.append(len(episode.turns))
        assert episode.opening is not None
        assert episode.opening.observations == (f" say {episode.problem.target}.",)
        refused = [outcome for action, outcome in episode.turns if str(action).startswith(" ")]
        assert all(outcome.observations == ("error: no blank first",) for outcome in refused)
    assert {1, 2, 3, 4} & set(counts) == set(counts)
    assert max(counts) >= 3
    for start, rollouts in found[0].items():
        assert [problem.opening == f" say {problem.target}." for problem in rollouts.problems] == [True, True]
        assert rollouts.actions == ()
        episodes = found[1][start]
        assert [text for row in rollouts.texts for text in row] == [
            "\n".join(of["content"] for of in e.messages) for e in episodes
        ]


@pytest.mark.slow
@pytest.mark.parametrize(("tokens", "workers"), [(1, 3), (3, 1)])
def test_whoever_draws_and_acts_in_whatever_parts_it_is_the_same(policy: Policy, tokens: int, workers: int) -> None:
    once, again = played(policy), played(policy, Here(workers), tokens=tokens)
    assert once[1] == again[1]
    assert sorted_rows(once) == sorted_rows(again)
    for start, rollouts in once[0].items():
        np.testing.assert_allclose(again[0][start].logprobs, rollouts.logprobs, atol=1e-5)
    judged = [judged_episodes(Here(workers), SPEC, found[1][0], SAMPLES) for found in (once, again)]  # type: ignore[arg-type]
    assert np.array_equal(judged[0].rewards, judged[1].rewards)
    assert np.isfinite(judged[0].rewards).all()


@pytest.mark.slow
def test_a_lost_verifier_in_the_middle_of_episodes_changes_nothing(policy: Policy) -> None:
    once, again = played(policy), played(policy, Here(2, lost=(3, 6)))
    assert once[1] == again[1]
    assert sorted_rows(once) == sorted_rows(again)


def test_tokens_and_turns_end_an_episode(policy: Policy) -> None:
    full = 0
    for episode, tokens, own, _, ended in rows(played(policy, limit=14)):
        assert len(tokens) <= 14
        assert ended or len(tokens) == 14
        full += not ended
        assert sum(a and not b for a, b in zip(own, [*own[1:], False], strict=True)) >= len(episode.turns)
    assert full


def test_a_class_may_allow_one_turn(policy: Policy) -> None:
    once = EnvironmentSpec(name="lengths.py:Lengths", text=TEXT.replace("= 4, 10.0", "= 1, 10.0"), sandbox="none")
    for episode, _, own, _, _ in rows(played(policy, spec=once)):
        assert len(episode.turns) == 1
        assert all(own)


def test_a_broken_environment_is_an_error_of_its_episodes_alone(policy: Policy) -> None:
    problems = (PROBLEMS[0], Problem("problem x", "broken", "t:x", played=True))
    _, episodes, _ = played(policy, leases=[Lease(range(2), problems)])
    judgement = judged_episodes(Here(), SPEC, episodes[0], SAMPLES)  # type: ignore[arg-type]
    failed = np.isnan(judgement.rewards)
    assert not failed[0].any()
    assert failed[1].any()
    broken = [episode for episode in episodes[0][SAMPLES:] if episode.last and episode.last.error]
    assert len(broken) == failed[1].sum()
    assert all("out of order" in episode.last.error for episode in broken if episode.last)
    assert {reason for row in judgement.reasons for reason in row if reason == "environment_error"}


def test_calls_are_read_and_unreadable_ones_are_answered(policy: Policy) -> None:
    guess = {"name": "guess", "parameters": {"properties": {"number": {}}}}
    conversation = Conversation.of(policy, Interface(({"type": "function", "function": guess},)))

    def drawn(text: str, ended: bool = True) -> Draw:
        draw = Draw((1,), 50, None)
        draw.give([*policy.tokenizer(text, add_special_tokens=False)["input_ids"], 2])
        draw.ended = ended
        return draw

    texts = ["guess(32)", "guess(", "so be it"]
    both = [Problem("", "", "", played=True), Problem("", "", "")]
    turns = [*map(drawn, texts), drawn("guess(1)", ended=False)]
    actions, of_one_turn = conversation.actions(turns * 2, [0] * 8, both)
    assert of_one_turn == ("",) * 4
    assert of_json(actions[0]) == (ToolCall("guess", {"number": 32}),)
    assert "stands in place" in actions[1] or "no JSON" in actions[1]
    assert actions[2:] == (as_json("so be it"), "")


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [0, 2])
def test_keys_that_are_kept_from_turn_to_turn_change_no_episode(policy: Policy, tokens: int) -> None:
    without, kept = played(policy), PrefixCache()
    found = played(policy, tokens=tokens, kept=kept)
    assert kept.nbytes > 0
    assert sorted_rows(found) == sorted_rows(without)
    logprobs = ({row[0].key: row[3] for row in rows(one)} for one in (found, without))
    for one, other in zip(*(sorted(of.items()) for of in logprobs), strict=True):
        np.testing.assert_allclose(one[1], other[1], atol=1e-5)
