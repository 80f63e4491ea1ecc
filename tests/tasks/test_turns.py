"""Episodes turn by turn: the tiny policy acts on an environment, whoever draws and whoever acts."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from threading import Lock
from typing import Any

import numpy as np
import pytest
import torch

from infra.cluster.placement import Offer
from infra.weights.version import PolicyVersion
from rl.config import PolicyConfig, SamplingConfig
from rl.environments import opened
from rl.environments.episode import Episode
from rl.environments.interface import Interface
from rl.environments.spec import EnvironmentSpec
from rl.environments.turn import Call, as_json, of_json
from rl.model.policy import Policy
from rl.model.tiny import build_model, build_tokenizer
from rl.records import Problem, Rollouts
from rl.sampling.conversation import Conversation
from rl.sampling.engine import to_the_end
from rl.sampling.kept import Kept
from rl.sampling.sampler import sample
from rl.sampling.scheduling import Draw
from rl.verifiers.spec import VerifierSpec
from tasks import verify
from tasks.calls.episodes import play
from tasks.calls.generator import Generator
from tasks.lease import Lease, Slice
from tasks.problem_set import ProblemSet
from tasks.slices import Slices
from tasks.turns import Episodes, in_turns, judged_episodes

SAMPLES, LIMIT = 3, 48
TEXT = """
class Lengths:
    turns, seconds, memory = 4, 10.0, 128

    def reset(self, target, **_):
        self.target, self.said, self.over = target, [], False
        return f" say {target}."

    def step(self, text):
        if text.startswith(" "):
            raise ValueError("no blank first")
        self.said.append(len(text))
        self.over = len(self.said) == 3 and text > "m"
        if self.target == "broken" and len(self.said) == 2:
            raise RuntimeError("out of order")
        return f"{len(text)} {len(self.said)}"

    def get_reward(self):
        return sum(self.said) / 100 + self.over
"""
SPEC = EnvironmentSpec(name="lengths.py:Lengths", text=TEXT, sandbox="none")
STEP = Interface(step=True)
PROBLEMS = tuple(
    Problem(f"problem {n}", target, f"t:{n}", played=True) for n, target in enumerate(["one", "two", "six", "ten"])
)
LEASES = [Lease(range(2), PROBLEMS[:2]), Lease(range(2, 4), PROBLEMS[2:])]


class Here:
    """Calls that are made in this process, one at a time, by verifiers of which one may be lost."""

    def __init__(self, workers: int = 1, lost: Iterable[int] = ()) -> None:
        self.workers, self.lost, self.calls = workers, set(lost), 0
        self.calling = Lock()

    def offers(self, *_: Any, **__: Any) -> list[Offer]:
        return [Offer(f"tcp://{n}", f"v{n}", {}) for n in range(self.workers)]

    def lease(self, _: str, function: Any, items: Sequence[Any], *, check: Any, **__: Any) -> Iterator[tuple[int, Any]]:
        for index, item in enumerate(items):
            with self.calling:
                self.calls += 1
                if self.calls in self.lost and function is play:  # it acts, and its answer and its processes are lost
                    function(*item)
                    opened.close(SPEC)
                result = function(*item)
            assert check(index, result) == ""
            yield index, result


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    """No process of an episode outlives this file."""
    yield
    opened.close(SPEC)


@pytest.fixture(scope="module")
def policy() -> Policy:
    """Of fresh weights, every fourth token of which ends a turn."""
    tokenizer = build_tokenizer()
    assert tokenizer.eos_token_id is not None
    model = build_model(len(tokenizer), tokenizer.eos_token_id, 0, seed=0)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, *range(20, len(tokenizer), 4)]
    return Policy(model, tokenizer, torch.device("cpu"), torch.float32)


Played = tuple[dict[int, Rollouts], dict[int, tuple[Episode, ...]], Episodes]


def played(
    policy: Policy,
    here: Any = None,
    *,
    leases: Sequence[Lease] = LEASES,
    spec: EnvironmentSpec = SPEC,
    interface: Interface = STEP,
    tokens: int = 0,
    limit: int = LIMIT,
    kept: Kept | None = None,
) -> Played:
    """All episodes; with ``tokens`` a generator hands a lease in after so many, and another one goes on."""
    config = SamplingConfig(max_tokens=limit)
    generator = Generator(PolicyConfig(), config, SAMPLES, 0, slice_seconds=tokens or None, interface=interface)
    episodes = Episodes(here or Here(), spec, "0.0", SAMPLES)
    version, drawing = PolicyVersion(0, "v0", ""), Lock()
    slices = Slices(generator, 0, episodes.begin(leases), range(1), 2000, lambda _: version)

    def made(indices: Iterable[int], _: tuple[int, ...]) -> Iterator[int]:
        for index in indices:
            done = False
            while not done:
                _, step, groups, problems, so_far = slices.arguments(index)
                with drawing:
                    returned = sample(
                        policy,
                        0,
                        problems,
                        config,
                        samples=SAMPLES,
                        seed=0,
                        step=step,
                        groups=groups,
                        so_far=so_far,
                        stop_now=(lambda looks: lambda: next(looks) >= tokens - 1)(count()) if tokens else to_the_end,
                        interface=interface,
                        kept=kept,
                    )
                assert slices.check(index, returned) == ""
                done = slices.take(index, returned, Offer("tcp://g", "g", {}))
            yield index

    found: dict[int, Rollouts] = {}
    by: dict[int, tuple[Slice, ...]] = {}
    for lease, rollouts, parts in in_turns(slices, episodes, made):
        found[lease.groups.start], by[lease.groups.start] = rollouts, parts
    assert all(np.array_equal(by[start][-1].end, of.lengths) for start, of in found.items())
    return found, {lease.groups.start: episodes.of(lease) for lease in leases}, episodes


def rows(found: Played) -> Iterator[tuple[Episode, list[int], list[bool], np.ndarray, bool]]:
    """Each episode with its tokens, which of them are the policy's, their log-probs, and whether it has ended."""
    for start, rollouts in found[0].items():
        T = rollouts.tokens.shape[2]  # noqa: N806
        flat = (of.reshape(-1, T) for of in (rollouts.tokens, rollouts.trained, rollouts.logprobs))
        for episode, n, end, tokens, own, logprobs in zip(
            found[1][start], rollouts.lengths.ravel(), rollouts.ended.ravel(), *flat, strict=True
        ):
            yield episode, tokens[:n].tolist(), own[:n].tolist(), logprobs[:n], bool(end)


def sorted_rows(found: Played) -> list[tuple[Episode, list[int], list[bool]]]:
    return sorted((row[:3] for row in rows(found)), key=lambda row: row[0].key)


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
        assert [problem.prompt.endswith(f" say {problem.target}.") for problem in rollouts.problems] == [True, True]
        assert rollouts.actions == ()
        episodes = found[1][start]
        assert [text for row in rollouts.texts for text in row] == [
            "\n".join(of["content"] for of in e.messages) for e in episodes
        ]


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


def test_a_lost_verifier_in_the_middle_of_episodes_changes_nothing(policy: Policy) -> None:
    once, again = played(policy), played(policy, Here(2, lost=(3, 6)))
    assert once[1] == again[1]
    assert sorted_rows(once) == sorted_rows(again)


def test_problems_of_one_turn_stand_among_those_that_are_played(policy: Policy) -> None:
    """Each is drawn as without an environment, and judged by its set's verifier."""
    alone = [Problem(f"add {n} and {n}", f"{n} + {n}", f"s:{n}", set="sums") for n in (1, 2)]
    lease = Lease(range(4), (alone[0], PROBLEMS[0], PROBLEMS[1], alone[1]))
    kept = Kept()
    found, episodes, _ = played(policy, leases=[lease], kept=kept)
    rollouts = found[0]
    asked = {"samples": SAMPLES, "seed": 0, "step": 0, "groups": (0, 3)}
    once = sample(policy, 0, alone, SamplingConfig(max_tokens=LIMIT), **asked)  # type: ignore[arg-type]
    single = rollouts.select([0, 3])
    assert all(np.array_equal(one, other) for one, other in zip(single.prompts, once.prompts, strict=True))
    T = once.tokens.shape[2]  # noqa: N806
    assert np.array_equal(single.tokens[..., :T], once.tokens)
    assert np.array_equal(single.trained[..., :T], once.inside)
    assert (single.texts, single.ended.tolist()) == (once.texts, once.ended.tolist())
    assert not (single.inside & ~single.trained).any()
    assert (rollouts.select([1, 2]).inside & ~rollouts.select([1, 2]).trained).any()
    assert [episode.opening for episode in (*episodes[0][:SAMPLES], *episodes[0][-SAMPLES:])] == [None] * 2 * SAMPLES

    judges = {"sums": VerifierSpec(name="arithmetic")}
    mixed = ProblemSet("all", lambda *_: [], (), judges, played=("says",), environment=SPEC)
    refused: list[str] = []
    both = verify.judged(Here(), rollouts, mixed, episodes[0], refused=refused.append)  # type: ignore[arg-type]
    by_verifier = verify.judged(Here(), once, ProblemSet("sums", lambda *_: [], (), judges))  # type: ignore[arg-type]
    of_episodes = judged_episodes(Here(), SPEC, episodes[0][SAMPLES:-SAMPLES], SAMPLES)  # type: ignore[arg-type]
    assert refused == []
    assert np.array_equal(both.rewards, [by_verifier.rewards[0], *of_episodes.rewards, by_verifier.rewards[1]])
    assert both.reasons == (by_verifier.reasons[0], *of_episodes.reasons, by_verifier.reasons[1])


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
    assert of_json(actions[0]) == (Call("guess", {"number": 32}),)
    assert "stands in place" in actions[1] or "no JSON" in actions[1]
    assert actions[2:] == (as_json("so be it"), "")


@pytest.mark.parametrize("tokens", [0, 2])
def test_keys_that_are_kept_from_turn_to_turn_change_no_episode(policy: Policy, tokens: int) -> None:
    without, kept = played(policy), Kept()
    found = played(policy, tokens=tokens, kept=kept)
    assert kept.nbytes > 0
    assert sorted_rows(found) == sorted_rows(without)
    logprobs = ({row[0].key: row[3] for row in rows(one)} for one in (found, without))
    for one, other in zip(*(sorted(of.items()) for of in logprobs), strict=True):
        np.testing.assert_allclose(one[1], other[1], atol=1e-5)
