"""Verifier `functions`: the completion makes the calls that the target lists, of the same functions with the same
arguments, in any order. How calls are written is said in `reading.calls`.

The target is JSON, one {"name", "arguments"} or a list of them. Arguments are compared as JSON values: 3 is 3.0, but
neither "3" nor true. `verl` and PipelineRL judge function calling so, on the parsed call.
"""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

from rl.records import Instructions, Problem, Verdict
from rl.verifiers.contract import Declared
from rl.verifiers.reading.calls import FunctionCall, MalformedError, calls, of_json

INSTRUCTIONS = Instructions(
    "Do what is asked for by calls of the given functions. Answer with the calls alone, each as name(argument=value), "
    "one behind the other; values are written as in JSON.",
    (("add(a: integer, b: integer)\nadd 3 and 4.", "add(a=3, b=4)"),),
)


def wanted(problem: Problem) -> list[FunctionCall]:
    """The calls that a problem asks for. Raises ValueError where its target lists none."""
    try:
        found = of_json(problem.target)
    except MalformedError as error:
        raise ValueError(f'{error}; write [{{"name": "add", "arguments": {{"a": 3}}}}]') from None
    if not found:
        raise ValueError("lists no call")
    return found


def check(problem: Problem) -> None:
    """Raise ValueError unless the target lists calls."""
    wanted(problem)


def example(problem: Problem) -> str:
    """The calls that a problem asks for, written as they are asked for."""
    return "\n".join(
        f"{call.name}({', '.join(f'{name}={json.dumps(value)}' for name, value in call.arguments.items())})"
        for call in wanted(problem)
    )


def verify(problem: Problem, completion: str) -> Verdict:
    """Reward 1 for the calls asked for, else 0; `format` is 1 for any calls. Raises ValueError for a broken problem."""
    asked = wanted(problem)
    if not completion.strip():
        return Verdict(0.0, "empty", {"format": 0.0, "right": 0.0})
    try:
        made = calls(completion)
    except MalformedError as error:
        return Verdict(0.0, "unparsable" if error.tried else "no_call", {"format": 0.0, "right": 0.0})
    for reason, of in LEVELS:
        if Counter(map(of, made)) != Counter(map(of, asked)):
            return Verdict(0.0, reason, {"format": 1.0, "right": 0.0})
    return Verdict(1.0, "right", {"format": 1.0, "right": 1.0})


def _names(call: FunctionCall) -> str:
    return json.dumps([call.name, sorted(call.arguments)])


def _types(call: FunctionCall) -> str:
    return json.dumps([call.name, {name: _type(value) for name, value in call.arguments.items()}], sort_keys=True)


def _values(call: FunctionCall) -> str:
    return json.dumps([call.name, _value(call.arguments)], sort_keys=True)


def _type(value: Any) -> Any:
    match value:
        case dict():
            return {name: _type(one) for name, one in value.items()}
        case list():
            return [_type(one) for one in value]
        case bool() | None | str():
            return type(value).__name__
    return "number"


def _value(value: Any) -> Any:
    """The value, a number always written the same way."""
    match value:
        case dict():
            return {name: _value(one) for name, one in value.items()}
        case list():
            return [_value(one) for one in value]
        case float() if value.is_integer():
            return int(value)
    return value


# what calls are compared by, the coarse before the fine, and what it is called where they differ
LEVELS: tuple[tuple[str, Callable[[FunctionCall], str]], ...] = (
    ("wrong_function", lambda call: call.name),
    ("wrong_arguments", _names),
    ("wrong_type", _types),
    ("wrong_value", _values),
)

VERIFIER = Declared(INSTRUCTIONS, tokens=256, check=check, example=example, verify=verify)
