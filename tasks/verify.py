"""Verification: every lease is judged as it comes in, spread over the verifiers."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil

import numpy as np
from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.dispatch.dispatch import Dispatch
from infra.dispatch.probe import each_well
from rl.admission import refused_judgement, telling
from rl.environments.episode import Episode
from rl.judging import Judgement, first
from rl.records import Problem, Rollouts
from rl.verifiers.spec import VerifierSpec
from tasks.batch.collection import Collection
from tasks.judge import judge, warm
from tasks.reward import check_rewards, with_rewards
from tasks.sets.problem_set import ProblemSet
from tasks.turns import judged_episodes

LATELY = 2.0  # seconds since the workers were counted that a lease is spread over


@task(name="verify", task_run_name="verify {collection.step}", cache_policy=NO_CACHE)
def verify(dispatch: Dispatch, collection: Collection, saw: Callable[[Judgement], None] = lambda _: None) -> None:
    """Judge the collection's leases as they come in; `saw` gets each judgement.

    Raises:
        BrokenVerifierError: every completion failed in its verifier.
    """
    try:
        for lease, rollouts in collection.arrivals():
            verdicts = judged(
                dispatch,
                rollouts,
                collection.problems,
                collection.episodes(lease),
                order=(collection.step,),
                refused=collection.refuse,
            )
            saw(verdicts)
            collection.judged(lease, rollouts, verdicts)
        collection.judgement()
    finally:
        collection.abandon()


def check_verifiers(
    dispatch: Dispatch, verifiers: Mapping[str, VerifierSpec], problems: Sequence[Problem] = ()
) -> tuple[str, ...]:
    """Try the verifiers on the workers that would run them; returns notes for a person. A worker on which one fails is
    left out.

    Raises:
        VerifierError: on all workers a file cannot be imported, a verifier fails on the first problem of its set, or
            a service does not answer.
    """
    check_rewards(dispatch, verifiers, problems)
    isolated = {name: spec for name, spec in verifiers.items() if not spec.runs_here}
    if not isolated:
        return ()
    found = each_well(dispatch, "verify", warm, isolated, first(problems))
    return tuple(dict.fromkeys(note for notes in found for note in notes))


def judged(
    dispatch: Dispatch,
    rollouts: Rollouts,
    problems: ProblemSet,
    episodes: Sequence[Episode] = (),
    *,
    order: tuple[int, ...] = (),
    refused: Callable[[str], object] = lambda _: None,
) -> Judgement:
    """The verdicts on these completions of ``problems``, spread over the verifiers; those that are played have
    ``episodes`` [P * G]. `order` as in `Dispatch.lease`. A result that is no judgement of these is refused: `refused`
    gets the reason, and another worker the call."""
    groups, samples = range(len(rollouts.problems)), rollouts.ended.shape[1]
    played = [group for group in groups if rollouts.problems[group].played]
    single = [group for group in groups if not rollouts.problems[group].played]
    found = []
    if played:
        assert problems.environment is not None
        of = [episode for group in played for episode in episodes[group * samples : (group + 1) * samples]]
        found.append(judged_episodes(dispatch, problems.environment, of, samples, order=order, refused=refused))
    if single:
        of_single = rollouts.select(single) if played else rollouts
        found.append(_judged_by_verifiers(dispatch, of_single, problems.verifiers, order=order, refused=refused))
    places = [*played, *single]
    return Judgement.join(found).select([places.index(group) for group in groups])


def _judged_by_verifiers(
    dispatch: Dispatch,
    rollouts: Rollouts,
    verifiers: Mapping[str, VerifierSpec],
    *,
    order: tuple[int, ...],
    refused: Callable[[str], object],
) -> Judgement:
    workers = len(dispatch.offers("verify", lately=LATELY))
    share = ceil(len(rollouts.problems) / max(1, workers))
    starts = range(0, len(rollouts.problems), share)
    parts: list[tuple[tuple[Problem, ...], tuple[tuple[str, ...], ...], Mapping[str, VerifierSpec]]] = [
        (rollouts.problems[at : at + share], rollouts.texts[at : at + share], verifiers) for at in starts
    ]

    def check(part: int, returned: Judgement) -> str:
        return telling(refused, refused_judgement(returned, len(parts[part][0]), rollouts.ended.shape[1]))

    tokens = [int(rollouts.lengths[at : at + share].sum()) for at in starts]
    verdicts = dict(dispatch.lease("verify", judge, parts, order=order, check=check, tokens=tokens.__getitem__))
    needed = np.array([[verifiers[problem.set].needs_end] for problem in rollouts.problems])
    found = Judgement.join([verdicts[part] for part in range(len(parts))]).without_ends(needed & ~rollouts.ended)
    return with_rewards(dispatch, rollouts, found, verifiers, order=order, refused=refused)
