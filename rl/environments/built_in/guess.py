"""Environment `guess`: find a number by guesses, each of which is said to be too low, too high or right.

A problem's target is the number; a column `largest` says from how many it is drawn, 1 to that (64). The reward is 0
where it is not found, else 1 less a twentieth for each guess after the first: its two parts. The fewest guesses on
average are those of binary search: 5.1 of 64 numbers.
"""

from typing import Any, ClassVar


class Guess:
    turns, seconds, memory = 10, 2.0, 128
    in_process: ClassVar[bool] = True

    def reset(self, target: str, largest: int = 64, **_: Any) -> None:
        self._secret, self._largest = int(target), int(largest)
        self._guesses, self._found, self.over = 0, False, False

    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: the guess
        """
        self._guesses += 1
        if not 1 <= number <= self._largest:
            raise ValueError(f"the number is from 1 to {self._largest}")
        self._found = self.over = number == self._secret
        return "right" if self._found else "higher" if number < self._secret else "lower"

    def get_reward(self) -> dict[str, float]:
        return {"found": float(self._found), "guesses": -(self._guesses - 1) / 20 if self._found else 0.0}
