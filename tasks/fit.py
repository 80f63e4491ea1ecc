"""Training on examples: an optimizer step, and what is measured without one."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.dispatch.dispatch import Dispatch
from rl.problems.examples import Example
from rl.records import Learned
from tasks.calls.tuner import Tuner

AT_ONCE = 256  # examples of a call that trains nothing
T = TypeVar("T")


class Shown(Protocol):
    """Where the progress is shown."""

    def total(self, steps: int, done: int = 0) -> None: ...

    def step(self, step: int, *, note: str = "", **figures: float) -> None: ...


@task(name="fit", task_run_name="fit {step}", cache_policy=NO_CACHE)
def fit(
    dispatch: Dispatch, tuner: Tuner, step: int, examples: tuple[Example, ...], reference: NDArray[np.float64] | None
) -> Learned:
    """Make version ``step + 1`` on the trainer. When this returns, its checkpoint is durable if ``checkpoint.every``
    makes one of this version."""
    return dispatch.run("train", tuner.fit, step, examples, reference)


@task(name="measure", task_run_name="measure {step}", cache_policy=NO_CACHE)
def measure(
    dispatch: Dispatch, tuner: Tuner, step: int, examples: Sequence[Example], reference: NDArray[np.float64] | None
) -> dict[str, float]:
    """The metrics of held-out examples under version ``step``, which the trainer has."""
    sums: dict[str, float] = defaultdict(float)
    total = 0
    for part in _parts(len(examples)):
        known = None if reference is None else reference[part]
        count, means = dispatch.run("train", tuner.measure, step, tuple(examples[part]), known)
        total += count
        for name, mean in means.items():
            sums[name] += count * mean
    return {name.replace("/", "/held_out_"): value / total for name, value in sums.items()}


@task(name="reference", cache_policy=NO_CACHE)
def reference_scores(
    dispatch: Dispatch,
    tuner: Tuner,
    examples: Sequence[Example],
    shown: Shown,
    keep: Callable[[slice, NDArray[np.float64]], None],
) -> None:
    """``keep`` is given [P, G], the log-likelihoods of the examples' completions under the start model, by parts."""
    shown.total(len(examples))
    for part in _parts(len(examples)):
        keep(part, dispatch.run("train", tuner.start_scores, tuple(examples[part])))
        shown.step(min(part.stop, len(examples)))


def check_examples(dispatch: Dispatch, tuner: Tuner, examples: Sequence[Example]) -> int:
    """How many completions are cut. Raises ValueError for an example that the model has no room for."""
    return sum(dispatch.run("train", tuner.check, tuple(examples[part])) for part in _parts(len(examples)))


def _parts(count: int) -> Iterator[slice]:
    return (slice(at, at + AT_ONCE) for at in range(0, count, AT_ONCE))
