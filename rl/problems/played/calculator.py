"""Word problems in two to five steps, as those of GSM8K are, in words that the tiny policy's tokenizer knows.

A problem tells how a number of things changes, then asks how many there are; or what several kinds of them, each of a
value of its own, come to. Its target is the expression of its answer, a whole number of 0 or more.
"""

from collections.abc import Iterator
from itertools import count

import numpy as np

from rl.arithmetic import evaluate
from rl.environments.built_in.calculator import Calculator
from rl.problems.made.grammar import Wording, is_held_out
from rl.problems.shown import Shown, drawn_apart
from rl.problems.streams import Side
from rl.records import Problem

LARGEST = 60  # numbers are drawn from 1 to this
FEW = 9  # factors and divisors from 2 to this
MOST = 100_000  # the answer's value
UPDATES = 560  # of the warm-up: of those calculated six of seven are right then
STREAM = (14,)  # keeps these draws apart from others with the same seed
THINGS = ("apples", "figures", "pairs", "products")


class Story(Wording):
    """One problem's random choices."""

    def change(self, value: int, said: str) -> tuple[str, str]:
        """What happens next to ``value`` things, whose expression is ``said``, and the expression of what there is
        then."""
        number = int(self.rng.integers(1, LARGEST + 1))
        few = int(self.rng.integers(2, FEW + 1))
        kinds = ["more", "times", "each"] + ["fewer"] * 2 * (value > number) + ["shared"] * (value % few == 0 < value)
        match self.pick(*kinds):
            case "more":
                return self.pick("you take {0} more", "{0} more are added", "you get {0} more").format(number), (
                    f"{said} + {number}"
                )
            case "fewer":
                words = self.pick("you give {0} away", "{0} are taken away", "you cut out {0}")
                return words.format(number), f"{said} - {number}"
            case "times":
                words = self.pick("you have {0} times as many after that", "the number is multiplied by {0}")
                return words.format(few), f"({said}) * {few}"
            case "each":
                words = self.pick("each of {0} others then gives you {1}", "{0} times you get {1} more")
                return words.format(few, number), f"{said} + {few} * {number}"
            case _:
                words = self.pick("you divide them by {0} and have one of the {0} left", "the number is divided by {0}")
                return words.format(few), f"({said}) / {few}"

    def changes(self) -> tuple[str, str]:
        """A number of things that changes two to four times."""
        thing, start = self.pick(*THINGS), int(self.rng.integers(1, LARGEST + 1))
        said, sentences = str(start), [self.pick("you have {0} {1}", "start with {0} {1}").format(start, thing)]
        for _ in range(self.pick(2, 2, 3, 4)):
            words, said = self.change(int(evaluate(said)), said)
            sentences.append(words)
        asked = self.pick("how many {} have you now?", "how many {} are there now?", "what is the number of {} now?")
        return f"{'. '.join(sentences)}. {asked.format(thing)}", said

    def total(self) -> tuple[str, str]:
        """Two or three kinds of things, each at a value of its own."""
        kinds = self.rng.permutation(len(THINGS))[: self.pick(2, 2, 3)]
        words, terms = [], []
        for kind in kinds:
            many, value = int(self.rng.integers(2, LARGEST + 1)), int(self.rng.integers(2, FEW + 1))
            words.append(f"{many} {THINGS[kind]} at {value} each")
            terms.append(f"{many} * {value}")
        start = self.pick("you take", "you have", "there are")
        asked = self.pick("what do they come to together?", "what is the total value?")
        *first, last = words
        if self.pick(True, False):
            return f"{start} {', '.join(first)} and {last}. {asked}", " + ".join(terms)
        less = int(self.rng.integers(1, FEW + 1))
        return f"{start} {', '.join(first)} and {last}. give {less} less. {asked}", f"{' + '.join(terms)} - {less}"

    def problem(self) -> tuple[str, str]:
        """The prompt and the expression of its answer."""
        return self.changes() if self.rng.random() < 0.7 else self.total()


def stream(seed: int, step: int, side: Side = "train") -> Iterator[Problem]:
    """The endless sequence of problems of one step, a function of (seed, step, side)."""
    for index in count():
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step, index], spawn_key=STREAM)))
        prompt, target = Story(rng).problem()
        if is_held_out(prompt) == (side == "held_out") and evaluate(target) <= MOST:
            yield Problem(prompt, target, f"calculator:{seed}.{step}.{index}")


def to_warm_up(seed: int, step: int) -> Iterator[Shown]:
    """One in two is calculated at once and answered; the others are answered without the tool, by a rough guess."""
    for problem, rng in drawn_apart(stream, seed, step):
        result = Calculator().calculate(problem.target)
        if rng.random() < 0.5:
            yield Shown(problem, ((f'calculate("{problem.target}")', result), (f"answer({result})", "")))
        else:
            guess = int(rng.integers(int(result) // 2, 2 * int(result) + 2))
            yield Shown(problem, ((f"answer({guess})", ""),))
