"""An algorithm of the user's, tried on a batch that is made up: its first update would be too late, and a batch without
differing rewards never shows it.

Legend: P groups, G completions per group, T tokens of a completion, N completion tokens.
"""

import traceback
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl.algorithm_config import AlgorithmSpec
from rl.algorithms.algorithm import Algorithm, Floats, TokenLoss, Tokens
from rl.algorithms.own import OwnAlgorithmError
from rl.records import Batch, Problem, Rollouts

LENGTHS = (3, 1, 2, 3)  # tokens of the completions
MAX_TOKENS = 3


def try_algorithm(spec: AlgorithmSpec) -> None:
    """Run each of its formulas once, on two groups of two completions, whose rewards differ; of an algorithm that
    learns from every group, those of the second one are equal.

    Raises:
        OwnAlgorithmError: what it raised, with the line of its file, or what it gave that no update can use.
    """
    algorithm = spec.algorithm
    try:
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


def _batch(spec: AlgorithmSpec, *, equal: bool) -> Batch:
    rng = np.random.default_rng(0)
    problems = [Problem("1 + 1", "2", "trial:1"), Problem("1 + 2", "3", "trial:2")]
    logprobs = [-rng.uniform(0.1, 2, length) for length in LENGTHS]
    tokens = [np.arange(1, length + 1) for length in LENGTHS]
    rollouts = Rollouts.padded(problems, [[1, 2], [1, 3]], tokens, logprobs=logprobs)

    def made() -> Floats:
        return np.where(rollouts.inside, rng.uniform(-1, 0, rollouts.tokens.shape), 0).astype(np.float32)

    return Batch(
        rollouts=rollouts,
        rewards=np.array([[1, 0], [1, 1] if equal else [0.25, 0.75]], np.float32),
        reasons=(("right", "wrong_value"),) * 2,
        reference_logprobs=made() if "reference_logprobs" in spec.needs else None,
        values=made() if "values" in spec.needs else None,
        baseline=np.array([0.5, 1], np.float32) if "baseline" in spec.needs else None,
        penalties=made() if spec.kl.in_reward else None,
    )


def _try(algorithm: Algorithm, batch: Batch) -> None:
    inside, shape = batch.rollouts.inside, batch.rollouts.tokens.shape
    advantage = np.asarray(_array("advantages", algorithm.advantages(batch), (shape[:2], shape), inside), np.float32)
    advantage = np.broadcast_to(advantage if advantage.ndim == 3 else advantage[..., None], shape)[inside]
    if "values" in algorithm.needs:
        _array("value_targets", algorithm.value_targets(batch), (shape,), inside)
    _array("token_weights", algorithm.token_weights(batch.rollouts.lengths, MAX_TOKENS), (shape[:2],), inside)
    old = batch.rollouts.logprobs[inside]
    ratios = np.linspace(-0.1, 0.1, len(old), dtype=np.float32)
    _array("token_mask", algorithm.token_mask(ratios, advantage), (old.shape,), inside)
    logprobs = torch.from_numpy(old + ratios).requires_grad_()
    whole = torch.from_numpy(ratios) if algorithm.by_sequence else None
    found = algorithm.token_loss(Tokens(logprobs, torch.from_numpy(old), torch.from_numpy(advantage), whole))
    if not isinstance(found, TokenLoss):
        raise _UnusableError(f"token_loss gives {type(found).__name__}; give TokenLoss(value), value of [N] tokens")
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


def _array(method: str, found: Any, shapes: tuple[tuple[int, ...], ...], inside: NDArray[np.bool_]) -> NDArray[Any]:
    """What a formula gave, where it is a finite array of one of these shapes; of tokens those ``inside`` count."""
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiub":
        raise _UnusableError(f"{method} gives {type(found).__name__}; give a numpy array of numbers")
    if found.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise _UnusableError(
            f"{method} gives {list(found.shape)}; give {wanted} for a batch of [P, G, T] {list(inside.shape)}"
        )
    used = found[inside] if found.shape == inside.shape else found
    if not np.isfinite(used).all():
        raise _UnusableError(f"{method} gives {used[~np.isfinite(used)][0]}, which is not finite")
    return found
