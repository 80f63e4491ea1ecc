"""Which groups of a step are generated, and in which leases: its prompts first, then replacements of groups that teach
nothing.

Replacements come in oversampling rounds. How large one is follows from the verdicts on all groups before it: as many
groups as should give what is missing at the rate seen so far, up to a bound. It is cut into leases from its first group
on, all full but the last one. So groups and leases depend on verdicts alone, never on when they came.

A round does not wait for the last of these verdicts. It is smallest if all groups that nobody has judged yet teach
something: each of its leases that is full even then can be generated at once, the others once no verdict changes its
size.
"""

from collections.abc import Set
from dataclasses import dataclass, field
from math import ceil

import numpy as np
from numpy.typing import NDArray


@dataclass
class Refills:
    """The groups generated so far, and the verdicts on them."""

    prompts: int  # groups that the batch is to have
    bound: int  # groups that may be generated, with these
    lease: int  # groups of a lease
    generated: int = 0
    _ends: list[int] = field(
        default_factory=list
    )  # groups up to the end of the prompts and of each round of known size
    _judged: dict[int, tuple[int, int]] = field(default_factory=dict)  # groups of a lease, by its first: all, teaching

    def judged(self, start: int, teaching: NDArray[np.bool_]) -> None:
        """The verdicts on the lease from group `start` on are in: [P] groups that teach something."""
        self._judged[start] = len(teaching), int(teaching.sum())

    @property
    def all_judged(self) -> bool:
        """Whether nothing that was generated waits for a verdict."""
        return sum(groups for groups, _ in self._judged.values()) == self.generated

    def draw(self, *, broken: bool) -> list[range]:
        """The groups of leases that are certain to be needed and were not generated before, until there are none;
        `broken`: no verifier has judged anything so far, and nothing is replaced."""
        if not self._ends:
            self._ends.append(self.prompts)
            return self._cut(self.prompts)
        found: list[range] = []
        while not (broken or found):  # of one round: a lease that reached into the next would be of both
            end = self._ends[-1]
            least, most = self._sizes(end)
            if least < most:
                return self._cut(end + least, full=True)
            if most == 0:
                break
            found = self._cut(end + most)
            self._ends.append(end + most)
        return found

    def reopen(self, again: Set[int]) -> int:
        """Forget the verdicts on the leases that begin with these groups, and every round whose size followed from
        one of them; the first of the groups that are not generated any more. To be called once all are judged."""
        assert self.generated == self._ends[-1]
        end = next(end for end in self._ends if end > min(again))
        self._ends = [one for one in self._ends if one <= end]
        self._judged = {start: of for start, of in self._judged.items() if start < end and start not in again}
        self.generated = end
        return end

    def _sizes(self, end: int) -> tuple[int, int]:
        """The least and the most groups of the round that begins with group `end`, by what is known."""
        known = [of for start, of in self._judged.items() if start < end]
        teaching, nothing = sum(some for _, some in known), sum(groups - some for groups, some in known)
        return self._size(end, end - nothing), self._size(end, teaching)

    def _size(self, end: int, teaching: int) -> int:
        """Groups of a round after `end` groups, of which so many teach something."""
        likely = ceil((self.prompts - teaching) * end / max(teaching, 1))
        return max(0, min(likely, self.bound - end))

    def _cut(self, end: int, *, full: bool = False) -> list[range]:
        """Leases of the groups that are not generated yet, up to `end`; only `full` ones."""
        leases = [range(at, min(at + self.lease, end)) for at in range(self.generated, end, self.lease)]
        found = [groups for groups in leases if not full or len(groups) == self.lease]
        self.generated = found[-1].stop if found else self.generated
        return found
