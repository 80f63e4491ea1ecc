"""Arithmetic problems from a grammar: sums, products, differences, brackets, chains of "then ...", in many wordings.

A problem is a walk: one or two opening steps ("add 3 and 4", "take 9 minus 2"), a joining step when there are two
("multiply the results"), and up to three further steps ("then subtract 5"); or a single question ("what is the sum of
3 and 4, times 5?"). Every problem is a function of (seed, step, index) alone.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Literal, TypeVar

import numpy as np

from rl.problems.shown import Shown
from rl.problems.streams import Side
from rl.records import Problem

LARGEST = 60  # numbers are drawn from 1 to this
LONGEST = 6  # problems with more numbers than this are left out
NUMBER = re.compile(r"\d+")
HELD_OUT_SHARE = 16  # one prompt in so many belongs to the held-out side

STREAM = (1,)  # keeps these draws apart from others with the same seed, such as the sampler's
UPDATES = 330  # of the warm-up, few enough that sampling stays varied
WARM_UP = (5,)  # and those of the warm-up from them: it shows answers, which training has to find

Kind = Literal["number", "sum", "difference", "product"]
T = TypeVar("T")


@dataclass(frozen=True)
class Term:
    """A piece of a Python expression and what kind of result it is."""

    text: str
    kind: Kind

    def bracketed(self, *kinds: Kind) -> str:
        """The text, in brackets if it is of one of these kinds."""
        return f"({self.text})" if self.kind in kinds else self.text


class Wording:
    """One problem's random choices. Methods named after a step return the clause and the term that it makes."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def pick(self, *choices: T) -> T:
        return choices[int(self.rng.integers(len(choices)))]  # what rng.choice draws, without its arrays

    def numbers(self, how_many: int) -> list[Term]:
        return [Term(str(n), "number") for n in self.rng.integers(1, LARGEST + 1, how_many)]

    # -- expressions

    def sum(self, terms: list[Term]) -> Term:
        return Term(" + ".join(term.text for term in terms), "sum")

    def difference(self, left: Term, right: Term) -> Term:
        return Term(f"{left.text} - {right.bracketed('sum', 'difference')}", "difference")

    def product(self, terms: list[Term]) -> Term:
        return Term(" * ".join(term.bracketed("sum", "difference") for term in terms), "product")

    # -- wordings

    def listed(self, terms: list[Term]) -> str:
        *first, last = [t.text for t in terms]
        return f"{', '.join(first)}{',' if len(first) > 1 else ''} and {last}"

    def noun(self) -> tuple[str, Term]:
        """An operand: a number, or now and then "the sum of 3 and 4"."""
        if self.rng.random() < 0.9:
            (number,) = self.numbers(1)
            return number.text, number
        pair = self.numbers(2)
        if self.pick("sum", "product") == "sum":
            return f"the sum of {self.listed(pair)}", self.sum(pair)
        return f"the product of {self.listed(pair)}", self.product(pair)

    def opening(self) -> tuple[str, Term]:
        match self.pick("sum", "sum", "difference", "product"):
            case "sum":
                terms = self.numbers(self.pick(2, 2, 2, 3, 3, 4, 5))
                words = self.pick("add {}", "add {}", "add {} together", "sum {}", "take the sum of {}")
                return words.format(self.listed(terms)), self.sum(terms)
            case "difference":
                left, right = self.numbers(2)
                words = self.pick("subtract {1} from {0}", "take {0} minus {1}", "take {1} away from {0}")
                return words.format(left.text, right.text), self.difference(left, right)
            case _:
                terms = self.numbers(self.pick(2, 2, 3))
                wordings = ["multiply {0}", "multiply {0} together", "find the product of {0}"]
                if len(terms) == 2:
                    wordings += ["multiply {1} by {2}"] * 3
                numbers = [term.text for term in terms]
                return self.pick(*wordings).format(self.listed(terms), *numbers), self.product(terms)

    def joining(self, first: Term, second: Term) -> tuple[str, Term]:
        both = f"the {first.kind}s" if first.kind == second.kind else "the results"
        which = self.pick("the two results", "the results", both)
        match self.pick("sum", "difference", "product", "product"):
            case "sum":
                return f"add {which}", self.sum([first, second])
            case "difference":
                words = self.pick("subtract the second from the first", "take the first minus the second")
                return words, self.difference(first, second)
            case _:
                return f"multiply {which}", self.product([first, second])

    def further(self, before: Term) -> tuple[str, Term]:
        that = self.pick("that", "it", "the result", f"that {before.kind}")
        words, operand = self.noun()
        match self.pick("add", "add", "subtract", "subtract", "multiply", "multiply", "from"):
            case "add":
                clause = self.pick("add {0}", "add {0}", "add {0} to {1}")
                term = self.sum([before, operand])
            case "subtract":
                clause = self.pick("subtract {0}", "subtract {0}", "subtract {0} from {1}", "take away {0}")
                term = self.difference(before, operand)
            case "multiply":
                clause = self.pick("multiply {1} by {0}", "multiply {1} by {0}", "multiply by {0}")
                term = self.product([before, operand])
            case _:
                clause = "subtract {1} from {0}"
                term = self.difference(operand, before)
        return clause.format(words, that), term

    def question(self) -> tuple[str, Term]:
        """Operands and signs in a row, or an operation on a noun: "the sum of 3 and 4, times 5"."""
        pair, (last,) = self.numbers(2), self.numbers(1)
        noun = self.listed(pair)
        match self.pick("sum", "product", "mixed"):
            case "sum":
                words, term = f"the sum of {noun}, times {last.text}", self.product([self.sum(pair), last])
            case "product":
                words, term = f"the product of {noun}, minus {last.text}", self.difference(self.product(pair), last)
            case _:
                words = f"{pair[0].text} plus {pair[1].text} times {last.text}"
                term = self.sum([pair[0], self.product([pair[1], last])])
        return self.pick("what is {0}?", "find {0}.", "compute {0}.").format(words), term

    def problem(self) -> tuple[str, str]:
        """The prompt and its expression."""
        if self.rng.random() < 0.05:
            prompt, term = self.question()
            return prompt, term.text
        clause, term = self.opening()
        clauses = [clause]
        if self.rng.random() < 0.35:
            clause, second = self.opening()
            joined, term = self.joining(term, second)
            clauses += [clause, joined]
            steps = self.pick(0, 0, 1)
        else:
            steps = self.pick(0, 1, 1, 2, 2, 3)
        for _ in range(steps):
            clause, term = self.further(term)
            clauses.append(clause)
        links = [self.pick(", ", ", then ") for _ in clauses[1:]]
        if links:
            links[-1] = self.pick(", then ", ", then ", ", and then ", ", ")
        prompt = "".join(part for pair in zip(clauses, [*links, "."], strict=True) for part in pair)
        return prompt, term.text


def is_held_out(prompt: str) -> bool:
    """Whether a prompt is held out, for every seed: so the two sides never share one."""
    return hashlib.sha256(prompt.encode()).digest()[0] % HELD_OUT_SHARE == 0


def stream(seed: int, step: int, side: Side = "train", key: tuple[int, ...] = STREAM) -> Iterator[Problem]:
    """The endless sequence of problems of one step, a function of (seed, step, side, key)."""
    for index in count():
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step, index], spawn_key=key)))
        prompt, target = Wording(rng).problem()
        if is_held_out(prompt) == (side == "held_out") and len(NUMBER.findall(target)) <= LONGEST:
            yield Problem(prompt, target, source=f"grammar:{seed}.{step}.{index}")


def to_warm_up(seed: int, step: int) -> Iterator[Shown]:
    """What an update of the warm-up shows, drawn apart from `stream` with the same seed and step; of all that a default
    run draws, one in 500 has the very words of one of these, by chance."""
    return map(Shown.target, stream(seed, step, key=WARM_UP))
