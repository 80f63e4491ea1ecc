"""A lease, and who has made it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from infra.cluster.placement import Offer
from rl.records import Maker, Problem


@dataclass(frozen=True)
class Lease:
    """Problems handed to one generator."""

    groups: range  # their numbers within the step
    problems: tuple[Problem, ...]

    def cut(self, count: int) -> tuple[Self, Self]:
        """Its first so many problems, and the others."""
        return (
            replace(self, groups=self.groups[:count], problems=self.problems[:count]),
            replace(self, groups=self.groups[count:], problems=self.problems[count:]),
        )


@dataclass(frozen=True)
class Slice:
    """What one generator has drawn of a lease."""

    by: Offer
    maker: Maker
    start: NDArray[np.int32]  # [P, G] tokens of each completion that were there before
    end: NDArray[np.int32]  # [P, G] and by then

    @property
    def drew(self) -> NDArray[np.bool_]:
        """[P, G] completions that it has drawn tokens of."""
        some: NDArray[np.bool_] = self.end > self.start
        return some


def neighbours_joined(leases: Sequence[Lease]) -> list[Lease]:
    """Those whose groups follow on one another as one."""
    found: list[Lease] = []
    for lease in leases:
        if found and found[-1].groups.stop == lease.groups.start:
            before = found.pop()
            lease = Lease(range(before.groups.start, lease.groups.stop), before.problems + lease.problems)
        found.append(lease)
    return found


def moved(slices: Sequence[Slice]) -> int:
    """Completions of a lease of which more than one worker has drawn tokens."""
    workers = {one.by.address for one in slices}
    by = [np.any([one.drew for one in slices if one.by.address == worker], axis=0) for worker in workers]
    return int((np.sum(by, axis=0) > 1).sum())
