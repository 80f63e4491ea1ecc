"""Function calls as models write them.

    <tool_call>{"name": "add", "arguments": {"a": 3}}</tool_call>    each in tags of its own; words around them may be
    {"name": "add", "arguments": {"a": 3}}                           or "parameters"; one, or a list of them
    add(a=3)                                                         one or several, in [ ] or not

Values are JSON's. Every text is read once from left to right, and bounded.
"""

import json
import re
from dataclasses import dataclass
from typing import Any

from rl.verifiers.reading.written import answered

MAX_CHARACTERS = 8192
MAX_CALLS = 64
MAX_NESTING = 32
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_ARGUMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_BLANK = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"[ \t\r\n]*[,;]?[ \t\r\n]*")  # calls
_TAGGED = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
_WRITTEN = re.compile(rf"\[?[ \t\r\n]*{NAME.pattern}\(")  # how plain calls begin
_BEGUN = re.compile(rf"{_WRITTEN.pattern}|[\[{{]|<tool_call>")
_LANGUAGE = re.compile(r"[A-Za-z_]*[ \t]*\n")


class MalformedError(ValueError):
    """A text that calls no function, or not in a way that can be read."""

    def __init__(self, detail: str, tried: bool = True) -> None:
        super().__init__(detail, tried)
        self.tried = tried  # whether it looks like a call

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class FunctionCall:
    """A function and its arguments by name: what JSON can hold."""

    name: str
    arguments: dict[str, Any]


def calls(text: str) -> list[FunctionCall]:
    """The calls of a completion, in order. Raises MalformedError."""
    text = answered(text).strip()
    if len(text) > MAX_CHARACTERS:
        raise MalformedError(f"has more than {MAX_CHARACTERS} characters")
    if "```" in text and not _BEGUN.match(text):
        text = _fenced(text)
    if _WRITTEN.match(text):
        found = _plain(text)
    elif text.startswith(("{", "[")):
        found = _of_value(_json(text))
    else:
        found = [call for inside in _tagged(text) for call in _of_value(_json(inside))]
    if not found:
        raise MalformedError("calls no function", tried=False)
    if len(found) > MAX_CALLS:
        raise MalformedError(f"has more than {MAX_CALLS} calls")
    return found


def of_json(text: str) -> list[FunctionCall]:
    """The calls that a JSON text lists. Raises MalformedError."""
    return _of_value(_json(text))


def _fenced(text: str) -> str:
    """The inside of the last code fence."""
    parts = text.split("```")
    if len(parts) % 2 == 0:
        raise MalformedError("has a code fence without its end")
    language = _LANGUAGE.match(parts[-2])
    return parts[-2][language.end() if language else 0 :].strip()


def _tagged(text: str) -> list[str]:
    """What stands in tags, of which there may be none."""
    counts = text.count("<tool_call>"), text.count("</tool_call>")
    inside = _TAGGED.findall(text) if counts[0] == counts[1] else []
    if len(inside) != counts[0]:
        raise MalformedError("has a tag without its other end")
    return [one.strip() for one in inside]


def _of_value(value: Any) -> list[FunctionCall]:
    """The calls that a JSON value is: one, or a list."""
    return [_of_object(one) for one in (value if isinstance(value, list) else [value])]


def _of_object(value: Any) -> FunctionCall:
    match value:
        case {"name": str(name), "arguments": dict(arguments)} if len(value) == 2 and NAME.fullmatch(name):
            return FunctionCall(name, arguments)
        case {"name": str(name), "parameters": dict(arguments)} if len(value) == 2 and NAME.fullmatch(name):
            return FunctionCall(name, arguments)
    raise MalformedError('is no object of "name" and "arguments"')


def _plain(text: str) -> list[FunctionCall]:
    """Calls written as name(argument=value, …)."""
    if text.startswith("["):
        if not text.endswith("]"):
            raise MalformedError("has a list without its end")
        text = text[1:-1].strip()
    at, found = 0, []
    while at < len(text):
        name = NAME.match(text, at)
        if name is None or text[name.end() : name.end() + 1] != "(":
            raise MalformedError("has something beside calls")
        arguments, at = _arguments(text, name.end() + 1)
        found.append(FunctionCall(name[0], arguments))
        after = _BETWEEN.match(text, at)
        assert after is not None  # it matches anything
        if after.end() == at < len(text):
            raise MalformedError("has calls that nothing divides")
        at = after.end()
        if at == len(text) and after[0].strip():
            raise MalformedError("ends in a comma")
    return found


def _arguments(text: str, at: int) -> tuple[dict[str, Any], int]:
    """The arguments up to the closing bracket, and where that ends."""
    arguments: dict[str, Any] = {}
    at = _past(text, at)
    while text[at : at + 1] != ")":
        if arguments:
            if text[at : at + 1] != ",":
                raise MalformedError("has arguments that no comma divides")
            at = _past(text, at + 1)
        name = _ARGUMENT.match(text, at)
        if name is None:
            raise MalformedError("has an argument without a name")
        at = _past(text, name.end())
        if text[at : at + 1] != "=":
            raise MalformedError("has an argument without a value")
        if name[0] in arguments:
            raise MalformedError(f"has {name[0]} twice")
        arguments[name[0]], at = _value(text, _past(text, at + 1))
        at = _past(text, at)
    return arguments, at + 1


def _past(text: str, at: int) -> int:
    """Where the blanks from there on end."""
    blank = _BLANK.match(text, at)
    assert blank is not None  # it matches anything
    return blank.end()


def _json(text: str) -> Any:
    value, end = _value(text, 0)
    if _past(text, end) != len(text):
        raise MalformedError("has something behind its JSON")
    return value


def _value(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins there, and where it ends."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"has a value that is no JSON ({str(error)[:60]})") from None
    if _depth(value) > MAX_NESTING:
        raise MalformedError(f"is nested deeper than {MAX_NESTING}")
    return value, end


def _depth(value: Any) -> int:
    """How many lists and objects are inside each other."""
    deepest, left = 0, [(value, 1)]
    while left:
        one, depth = left.pop()
        inside = list(one.values()) if isinstance(one, dict) else one if isinstance(one, list) else None
        if inside is not None:
            deepest = max(deepest, depth)
            left += [(each, depth + 1) for each in inside]
    return deepest


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name stands there twice")
    return made


def _finite(text: str) -> float:
    number = float(text)
    if abs(number) == float("inf"):
        raise ValueError("a number that is too large")
    return number


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_constant)
