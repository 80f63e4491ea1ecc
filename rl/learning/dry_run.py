"""An algorithm of the user's, tried on a batch that is made up: its first update would be too late, and a batch without
differing rewards never shows it.

Legend: P groups, G completions per group, T tokens of a completion, N completion tokens.
"""

import re
import traceback
from difflib import get_close_matches
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl.algorithms.algorithm import Aggregation, Algorithm, Floats, TokenLoss, Tokens
from rl.algorithms.own import OwnAlgorithmError
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.objective import EVERY
from rl.records import Batch, Problem, Rollouts

LENGTHS = (3, 1, 2, 3, 2, 1)  # tokens of the completions
MAX_TOKENS = 3


def try_algorithm(spec: AlgorithmSpec) -> None:
    """Run each of its formulas once, on two groups of three completions, whose rewards differ, and one of which has no
    verdict; of an algorithm that learns from every group, the rewards of the second group are equal.

    Raises:
        OwnAlgorithmError: what it raised, with the line of its file, or what it gave that no update can use.
    """
    algorithm = spec.algorithm
    try:
        _check_names(type(algorithm))
        _try(algorithm, _batch(spec, equal=algorithm.every_group))
    except _UnusableError as error:
        raise OwnAlgorithmError(f"algorithm {spec.name}: {error}") from None
    except Exception as error:
        path = spec.name.rpartition(":")[0]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        said = ": ".join(filter(None, [type(error).__name__, " ".join(str(error).split())]))
        at = f" (line {lines[-1]})" if lines else ""
        raise OwnAlgorithmError(f"algorithm {spec.name}: {said}{at}") from error


class _UnusableError(ValueError):
    """What a formula gave cannot be trained with."""


def _check_names(of: type[Algorithm]) -> None:
    """What the contract does not know is not read: a name that is nearly one of its own is a slip."""
    contract = {name for name in (*vars(Algorithm), *Algorithm.__annotations__) if not name.startswith(("_", "model_"))}
    for each in of.__mro__:
        if each.__module__.startswith("rl.") or not issubclass(each, Algorithm):
            continue
        for name in (*vars(each), *vars(each).get("__annotations__", {})):
            near = get_close_matches(name, contract - vars(each).keys(), 1, 0.85)
            if near and name not in contract and name not in of.model_fields:
                raise _UnusableError(f"{name} is nothing that is read; did you mean {near[0]}?")
    if of.aggregation not in get_args(Aggregation):
        raise _UnusableError(f"aggregation is {of.aggregation!r}; give {', '.join(get_args(Aggregation))}")


def _batch(spec: AlgorithmSpec, *, equal: bool) -> Batch:
    rng = np.random.default_rng(0)
    problems = [Problem("1 + 1", "2", "trial:1"), Problem("1 + 2", "3", "trial:2")]
    logprobs = [-rng.uniform(0.1, 2, length) for length in LENGTHS]
    tokens = [np.arange(1, length + 1) for length in LENGTHS]
    rollouts = Rollouts.padded(problems, [[1, 2], [1, 3]], tokens, logprobs=logprobs)
    rewards = np.array([[1, 0, np.nan], [1, 1, 1] if equal else [0.25, 0.75, 1]], np.float32)
    rollouts = rollouts.only(~np.isnan(rewards))  # as in every update

    def made() -> Floats:
        return np.where(rollouts.trained, rng.uniform(-1, 0, rollouts.tokens.shape), 0).astype(np.float32)

    return Batch(
        rollouts=rollouts,
        rewards=rewards,
        reasons=(("right", "wrong_value", "right"),) * 2,
        reference_logprobs=made() if "reference_logprobs" in spec.needs else None,
        values=made() if "values" in spec.needs else None,
        baseline=np.array([0.5, 1], np.float32) if "baseline" in spec.needs else None,
        penalties=made() if spec.kl.in_reward else None,
    )


def _try(algorithm: Algorithm, batch: Batch) -> None:
    trained, shape = batch.rollouts.trained, batch.rollouts.tokens.shape
    advantage = np.asarray(_array("advantages", algorithm.advantages(batch), (shape[:2], shape), trained), np.float32)
    advantage = np.broadcast_to(advantage if advantage.ndim == 3 else advantage[..., None], shape)[trained]
    if "values" in algorithm.needs:
        _array("value_targets", algorithm.value_targets(batch), (shape,), trained)
    _array("token_weights", algorithm.token_weights(batch.rollouts.trained_lengths, MAX_TOKENS), (shape[:2],), trained)
    old = batch.rollouts.logprobs[trained]
    ratios = np.linspace(-0.1, 0.1, len(old), dtype=np.float32)
    _array("token_mask", algorithm.token_mask(ratios, advantage), (old.shape,), trained)
    logprobs = torch.from_numpy(old + ratios).requires_grad_()
    whole = torch.from_numpy(ratios) if algorithm.by_sequence else None
    found = algorithm.token_loss(Tokens(logprobs, torch.from_numpy(old), torch.from_numpy(advantage), whole))
    if not isinstance(found, TokenLoss):
        raise _UnusableError(f"token_loss gives {type(found).__name__}; give TokenLoss(value), value of [N] tokens")
    for name in found.metrics:
        if name in EVERY or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            why = "is of every update" if name in EVERY else "is no name of letters, digits and _"
            raise _UnusableError(f"token_loss: metrics[{name!r}]: {name!r} {why}; give another one")
    for name, of in {"value": found.value, **{f"metrics[{name!r}]": of for name, of in found.metrics.items()}}.items():
        given = f"{list(of.shape)}" if isinstance(of, Tensor) else type(of).__name__
        if not isinstance(of, Tensor) or of.shape != logprobs.shape:
            raise _UnusableError(
                f"token_loss: {name} is {given}; give a tensor of [N] tokens, here {list(logprobs.shape)}"
            )
    if not found.value.requires_grad:
        raise _UnusableError("token_loss: value does not follow from tokens.logprobs, so that nothing would be learned")
    found.value.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    if not (found.value.isfinite().all() and logprobs.grad.isfinite().all()):
        raise _UnusableError("token_loss: value or its gradient is not finite")


def _array(method: str, found: Any, shapes: tuple[tuple[int, ...], ...], trained: NDArray[np.bool_]) -> NDArray[Any]:
    """What a formula gave, where it is a finite array of one of these shapes; what is ``trained`` counts."""
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiub":
        raise _UnusableError(f"{method} gives {type(found).__name__}; give a numpy array of numbers")
    if found.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise _UnusableError(
            f"{method} gives {list(found.shape)}; give {wanted} for a batch of [P, G, T] {list(trained.shape)}"
        )
    judged = trained.any(axis=2)
    used = found[trained] if found.shape == trained.shape else found[judged] if found.shape == judged.shape else found
    if not np.isfinite(used).all():
        raise _UnusableError(f"{method} gives {used[~np.isfinite(used)][0]}, which is not finite")
    return found
