"""Values of completions, lease by lease, all of a batch by one version of the critic."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from infra.dispatch.dispatch import Dispatch
from infra.weights.version import PolicyVersion
from rl.admission import refused_scores, telling
from rl.graph import SCORES, Call
from rl.records import Rollouts
from tasks.calls.critic import Valuer
from tasks.mending import Mend, Mending, leased
from tasks.score import bare


@dataclass(frozen=True)
class ValueScores:
    """The value of the state before each token."""

    call: ClassVar[Call] = SCORES["values"]

    valuer: Valuer
    newest: Callable[[int], PolicyVersion]  # version of the critic from this step on; waits until there is one
    staleness: int  # versions that it may be behind the step
    mend: Mend
    _versions: dict[int, PolicyVersion] = field(default_factory=dict)  # by step
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(
        self, dispatch: Dispatch, step: int, rollouts: Rollouts, refused: Callable[[str], object]
    ) -> NDArray[np.float32]:
        """[P, G, T] of one lease. The first lease of a step decides which version values all of them."""
        with self._lock:
            if step not in self._versions:
                self._versions[step] = self.newest(max(0, step - self.staleness))
            version = self._versions[step]

        def check(_: int, returned: NDArray[np.float32]) -> str:
            return telling(refused, refused_scores(returned, rollouts))

        def asked(_: int) -> tuple[PolicyVersion, Rollouts]:
            return version, bare(rollouts)

        mending = Mending(self.mend)
        calls = leased(
            dispatch,
            "value",
            self.valuer.value,
            asked,
            [0],
            check=check,
            mending=mending,
            order=(step,),
            tokens=lambda _: rollouts.generated_tokens,
        )
        ((_, found),) = calls
        return found

    def age(self, step: int) -> int:
        """Versions that the critic which valued the batch of this step was behind it; the version is not needed any
        more."""
        return step - self._versions.pop(step).step
