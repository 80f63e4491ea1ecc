"""Problems of one turn beside those of several."""

from collections.abc import Iterator

import numpy as np
import pytest

from rl.config import SamplingConfig
from rl.environments import opened
from rl.model.policy import Policy
from rl.records import Problem
from rl.sampling.prefix_cache import PrefixCache
from rl.sampling.sampler import sample
from rl.verifiers.spec import VerifierSpec
from tasks import verify
from tasks.batch.lease import Lease
from tasks.sets.problem_set import ProblemSet
from tasks.turns import judged_episodes
from tests.tasks.episodes import LIMIT, PROBLEMS, SAMPLES, SPEC, Here, fresh_policy, played


@pytest.fixture(scope="module", autouse=True)
def closed() -> Iterator[None]:
    """No process of an episode outlives this file."""
    yield
    opened.close(SPEC)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return fresh_policy()


def test_problems_of_one_turn_stand_among_those_that_are_played(policy: Policy) -> None:
    """Each is drawn as without an environment, and judged by its set's verifier."""
    alone = [Problem(f"add {n} and {n}", f"{n} + {n}", f"s:{n}", set="sums") for n in (1, 2)]
    lease = Lease(range(4), (alone[0], PROBLEMS[0], PROBLEMS[1], alone[1]))
    kept = PrefixCache()
    found, episodes, _ = played(policy, leases=[lease], kept=kept)
    rollouts = found[0]
    asked = {"samples": SAMPLES, "seed": 0, "step": 0, "groups": (0, 3)}
    once = sample(policy, 0, alone, SamplingConfig(max_tokens=LIMIT), **asked)  # type: ignore[arg-type]
    single = rollouts.select([0, 3])
    assert kept._prompts
    assert not {tuple(prompt.tolist()) for prompt in single.prompts} & {*kept._prompts}
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
