"""The scores of reward models, added to what verifiers say: computed on workers that hold the models."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from infra.dispatch.dispatch import Dispatch
from rl.admission import telling
from rl.judging import Judgement
from rl.records import Problem, Rollouts
from rl.verifiers.parts import MAX_REWARD
from rl.verifiers.spec import VerifierError, VerifierSpec
from tasks.calls.reward import NoRoomForCompletionError, RewardModel, RewardModelChangedError

CALL = "reward"
AT_ONCE = RewardModelChangedError, NoRoomForCompletionError  # which no other worker would not raise
PART = 8  # problems that a worker scores at a time


def with_rewards(
    dispatch: Dispatch,
    rollouts: Rollouts,
    judgement: Judgement,
    verifiers: Mapping[str, VerifierSpec],
    *,
    order: tuple[int, ...] = (),
    refused: Callable[[str], object] = lambda _: None,
) -> Judgement:
    """The judgement with the weighted scores of the sets' reward models, the leases spread over the workers that may
    run them; `order` as in `Dispatch.lease`. A result that is no scores of these is refused: `refused` gets the reason,
    and another worker the call."""
    rows: dict[tuple[RewardModel, float], list[int]] = {}
    for row, problem in enumerate(rollouts.problems):
        if (found := _model(verifiers[problem.set])) is not None:
            rows.setdefault(found, []).append(row)
    if not rows:
        return judgement
    scores, cut = np.full((2, *judgement.rewards.shape), np.nan, np.float32)
    for (model, weight), mine in rows.items():
        found, cut[mine] = _scores(dispatch, model, rollouts, mine, order, refused)
        scores[mine] = weight * found
    alone = [verifiers[problem.set].reward_model is None for problem in rollouts.problems]
    return judgement.with_scores(scores, cut, alone)


def check_rewards(dispatch: Dispatch, verifiers: Mapping[str, VerifierSpec], problems: Sequence[Problem]) -> None:
    """Try each reward model on a worker that may run it: with one problem, and whether the prompts of all of its set's
    have room.

    Raises:
        PlacementError: no worker may.
        VerifierError: what is named is no reward model, or a problem's prompt leaves it no room for a completion.
        BrokenRewardModelError: its score is none.
    """
    for name, spec in verifiers.items():
        if (found := _model(spec)) is None:
            continue
        dispatch.require((CALL,))
        some = tuple(problem for problem in problems if problem.set == name)
        try:
            dispatch.run(CALL, found[0].check, some or (Problem("1", "1", "trial"),))
        except NoRoomForCompletionError as error:
            raise VerifierError(str(error)) from error
        except ValueError as error:
            raise VerifierError(f"verifier reward-model:{found[0].uri}: {error}") from error


def _scores(
    dispatch: Dispatch,
    model: RewardModel,
    rollouts: Rollouts,
    rows: Sequence[int],
    order: tuple[int, ...],
    refused: Callable[[str], object],
) -> NDArray[np.float32]:
    """[2, p, G] of these rows: scores, and which completions were cut."""
    # parts that depend on the rows alone: what is computed together rounds alike, whoever is there
    mine = [rows[at : at + PART] for at in range(0, len(rows), PART)]
    parts = [
        (
            tuple(rollouts.problems[row] for row in some),
            tuple(rollouts.texts[row] for row in some),
            rollouts.ended[list(some)],
        )
        for some in mine
    ]

    def check(part: int, returned: NDArray[np.float32]) -> str:
        return telling(refused, _unlike_scores(returned, (2, *parts[part][2].shape)))

    found = dict(dispatch.lease(CALL, model.score, parts, order=order, check=check, at_once=AT_ONCE))
    return np.concatenate([found[part] for part in range(len(parts))], axis=1)


def _unlike_scores(returned: object, shape: tuple[int, ...]) -> str:
    """Why these are no scores, in a few words; empty if they are."""
    if not isinstance(returned, np.ndarray) or returned.dtype != np.float32 or returned.shape != shape:
        return f"it is {type(returned).__name__}, and not {list(shape)} numbers"
    return "" if (np.abs(returned) <= MAX_REWARD).all() else f"of its scores one is beyond {MAX_REWARD:g}, or none"


def _model(spec: VerifierSpec) -> tuple[RewardModel, float] | None:
    if spec.rewards is None:
        return None
    uri, weight = spec.rewards
    return RewardModel(uri, spec.digest), weight
