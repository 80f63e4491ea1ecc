"""Environment `hanoi`: the Tower of Hanoi, by text: `a c` moves the upper disk of peg a to peg c.

A problem's column `pegs` says on which peg each disk is, the smallest first (`aab`); all have to come to peg c. Its
target is the fewest moves that this takes. The reward is 0 unless they do, else those over the turns that were made.
"""

import re
from typing import Any, ClassVar

PEGS = "abc"
MOST_DISKS = 8
_BETWEEN = r"[^\w.\n]"  # not from one sentence or line into the next
_MOVE = re.compile(rf"\b([abc])\b{_BETWEEN}*(?:to{_BETWEEN}+)?(?:peg{_BETWEEN}+)?\b([abc])\b")


class Hanoi:
    turns, seconds, memory = 64, 2.0, 128
    in_process: ClassVar[bool] = True

    def reset(self, target: str, pegs: str, **_: Any) -> None:
        if not 1 <= len(pegs) <= MOST_DISKS or set(pegs) - set(PEGS):
            raise ValueError(f"pegs are {pegs[:60]!r}; write a, b or c for each of 1 to {MOST_DISKS} disks")
        self._fewest, self._disks = int(target), len(pegs)
        self._pegs = {peg: [disk for disk in range(len(pegs), 0, -1) if pegs[disk - 1] == peg] for peg in PEGS}
        self._turns, self.over = 0, False

    def step(self, text: str) -> str:
        """The pegs after the last move that the text names."""
        self._turns += 1
        found = _MOVE.findall(text.lower())
        if not found:
            raise ValueError("write a move such as a c")
        source, to = found[-1]
        if source == to or not self._pegs[source]:
            raise ValueError(f"there is nothing to move from {source} to {to}")
        if self._pegs[to] and self._pegs[to][-1] < self._pegs[source][-1]:
            raise ValueError(f"disk {self._pegs[source][-1]} is larger than disk {self._pegs[to][-1]}")
        self._pegs[to].append(self._pegs[source].pop())
        self.over = len(self._pegs["c"]) == self._disks
        return shown(self._pegs)

    def get_reward(self) -> float:
        return self._fewest / self._turns if self.over else 0.0


def shown(pegs: dict[str, list[int]]) -> str:
    """The disks of each peg, the lowest first."""
    return ", ".join(f"{peg}: {' '.join(map(str, pegs[peg])) or '-'}" for peg in PEGS)
