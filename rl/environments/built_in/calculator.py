"""Environment `calculator`: word problems in several steps, with a calculator.

A problem's target is the answer, an expression of `rl.arithmetic`. The reward is 1 for exactly its value, else 0.
"""

from fractions import Fraction
from typing import Any, ClassVar

from rl.arithmetic import UnfitExpression, evaluate


class Calculator:
    turns, seconds, memory = 8, 2.0, 128
    in_process: ClassVar[bool] = True

    def reset(self, target: str, **_: Any) -> None:
        self._wanted, self._right, self.over = evaluate(target), False, False

    def calculate(self, expression: str) -> str:
        """Calculate the exact value of an expression.

        Args:
            expression: numbers, + - * / // % ** and brackets, such as (3 + 4) * 5
        """
        try:
            return str(evaluate(expression))
        except UnfitExpression as unfit:
            raise ValueError(f"{unfit.reason}: {unfit.detail}") from None

    def answer(self, number: float) -> str:
        """Give the answer, which ends the problem.

        Args:
            number: the answer
        """
        try:
            self._right = Fraction(str(number)) == self._wanted  # as it was written: 0.1 is a tenth
        except (ValueError, OverflowError):
            raise ValueError("a number is finite") from None
        self.over = True
        return "right" if self._right else "wrong"

    def get_reward(self) -> tuple[float, str]:
        return float(self._right), "right" if self._right else "wrong_value" if self.over else "no_answer"
