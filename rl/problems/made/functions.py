"""Requests that are answered by function calls: a few functions with their arguments, then what is asked for, in words
that the tiny policy's tokenizer knows. One call, or two of them.

`tools` in a problem has the functions' JSON schemas, as chat templates take them.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from rl.problems.made.grammar import Wording, is_held_out
from rl.problems.shown import Shown, drawn_apart
from rl.problems.streams import Side
from rl.records import Problem
from rl.verifiers.built_in.functions import example

LARGEST = 60  # whole numbers are drawn from 1 to this
SHOWN = (2, 3, 3, 4)  # how many functions a problem shows, drawn from these
SOME = ("apples", "figures", "pairs", "products", "numbers")
WHO = ("me", "you", "them", "all", "each")
UPDATES = 330  # of the warm-up
STREAM = (16,)  # keeps these draws apart from others with the same seed


@dataclass(frozen=True)
class Function:
    """A function, and how one asks for it. An argument's type is JSON's."""

    name: str
    types: dict[str, str]
    wordings: tuple[str, ...]  # with a place for each argument that they name
    implied: tuple[
        tuple[str, Any, str], ...
    ] = ()  # an argument that is not named: its value, and the words that mean it


FUNCTIONS = (
    Function(
        "add",
        {"a": "integer", "b": "integer"},
        ("add {a} and {b}", "what is {a} plus {b}?", "what is the sum of {a} and {b}?"),
    ),
    Function(
        "subtract",
        {"number": "integer", "from": "integer"},
        ("subtract {number} from {from}", "what is {from} minus {number}?", "take {number} away from {from}"),
    ),
    Function(
        "multiply",
        {"value": "integer", "times": "integer"},
        ("multiply {value} by {times}", "what is {value} times {times}?"),
    ),
    Function(
        "divide",
        {"value": "number", "by": "number"},
        ("divide {value} by {by}", "what is the quotient of {value} and {by}?"),
    ),
    Function(
        "give",
        {"many": "integer", "what": "string", "to": "string"},
        ("give {to} {many} {what}", "{many} {what} to {to}", "have {many} of the {what} given to {to}"),
    ),
    Function(
        "count",
        {"what": "string", "twice": "boolean"},
        ("count the {what}", "how many {what} are there?"),
        (("twice", False, ""), ("twice", True, ", and then again")),
    ),
    Function(
        "join",
        {"numbers": "array"},
        ("join {numbers}", "bring {numbers} together"),
    ),
    Function(
        "raise",
        {"what": "string", "by": "number", "figure": "boolean"},
        ("raise the value of the {what} by {by}", "have the {what} increased by {by}"),
        (("figure", True, ", with a figure"), ("figure", False, "")),
    ),
)


class Request(Wording):
    """One problem's random choices."""

    def argument(self, function: Function, name: str) -> tuple[str, Any]:
        """A value for an argument, in words and as JSON has it."""
        number = int(self.rng.integers(1, LARGEST + 1))
        match function.types[name]:
            case "integer":
                return str(number), number
            case "number":
                value: float = number / 2 if number % 2 else number // 2
                return str(value), value
            case "array":
                numbers = [int(n) for n in self.rng.integers(1, LARGEST + 1, self.pick(2, 3, 3, 4))]
                *first, last = map(str, numbers)
                return f"{', '.join(first)} and {last}", numbers
        word = self.pick(*(WHO if name == "to" else SOME))
        return word, word

    def call(self, function: Function) -> tuple[str, dict[str, Any]]:
        """A request for one call, and the call."""
        name, value, behind = self.pick(*function.implied) if function.implied else ("", None, "")
        drawn = {each: self.argument(function, each) for each in function.types if each != name}
        given = {each: value if each == name else drawn[each][1] for each in function.types}
        words = self.pick(*function.wordings).format(**{each: said for each, (said, _) in drawn.items()})
        asks = words.endswith("?")
        return f"{words.removesuffix('?')}{behind}{'?' if asks else '.'}", {"name": function.name, "arguments": given}

    def answered(self) -> tuple[str, list[dict[str, Any]], list[Function]]:
        """The request, the calls that answer it, and the functions that are shown."""
        shown = [FUNCTIONS[at] for at in self.rng.permutation(len(FUNCTIONS))[: self.pick(*SHOWN)]]
        asked = [self.call(self.pick(*shown)) for _ in range(self.pick(1, 1, 2))]
        return " ".join(words for words, _ in asked), [call for _, call in asked], shown


def signature(function: Function) -> str:
    """How a function is shown."""
    return f"{function.name}({', '.join(f'{name}: {kind}' for name, kind in function.types.items())})"


def schema(function: Function) -> dict[str, Any]:
    """A function as chat templates take it."""
    properties = {name: {"type": kind} for name, kind in function.types.items()}
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {"type": "function", "function": {"name": function.name, "description": "", "parameters": parameters}}


def stream(seed: int, step: int, side: Side = "train") -> Iterator[Problem]:
    """The endless sequence of problems of one step, a function of (seed, step, side). A request is on one side,
    whichever functions are shown with it."""
    for index in count():
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step, index], spawn_key=STREAM)))
        words, calls, shown = Request(rng).answered()
        if is_held_out(words) == (side == "held_out"):
            prompt = "\n".join([*map(signature, shown), words])
            tools = {"tools": [schema(each) for each in shown]}
            yield Problem(prompt, json.dumps(calls), f"functions:{seed}.{step}.{index}", tools)


def to_warm_up(seed: int, step: int) -> Iterator[Shown]:
    """The calls that are asked for."""
    for problem, _ in drawn_apart(stream, seed, step):
        yield Shown(problem, ((example(problem), ""),))
