"""The calls of tools in a turn of the policy's. It needs no torch, and takes time in proportion to the text, whatever
that holds; values are JSON's, strictly.

`hermes`: ``<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>``, as Qwen 3 writes them, around which there may
be words; `llama3_json`: ``{"name": "f", "parameters": {"x": 1}}`` as the whole turn, several behind one another;
`plain`: ``f(1)`` or ``f(x=1)`` as a line of its own, for models that were taught no form. (The first two are the names
of vLLM's parsers.)
"""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from rl.environments.turn import Action, ToolCall, Unread

Syntax = Literal["hermes", "llama3_json", "plain"]
FORMS: dict[Syntax, str] = {  # as a policy is told, whose tokenizer may know ASCII alone
    "hermes": '<tool_call>{"name": ..., "arguments": {...}}</tool_call>',
    "llama3_json": '{"name": ..., "parameters": {...}}',
    "plain": "name(value, ...)",
}
MOST_CALLS = 16  # of a turn
MOST_CHARACTERS = 100_000  # of a turn that is read
MOST_LEVELS = 32  # of arrays and objects in one another
OPEN, CLOSE = "<tool_call>", "</tool_call>"
_THOUGHT, _THOUGHT_ENDS = "<think>", "</think>"
_NAME = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)
_BEFORE = re.compile(r"<\|python_tag\|>")  # of Llama's turns that call a tool


def explained(tools: Sequence[Mapping[str, Any]]) -> str:
    """The tools, by their JSON schemas, and how they are called in the `plain` form, for a model whose chat template
    does not say it."""
    lines = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    return "\n".join(["You can call these tools:", *lines, f"A call is a line of its own, as {FORMS['plain']}"])


class _UnreadableError(ValueError):
    """A call that cannot be read: one line, for the policy."""


def action_of(text: str, syntax: Syntax, tools: Mapping[str, Sequence[str]]) -> Action:
    """What a turn asks for: its calls, in order; `Unread` where one cannot be read, with what is wrong in a line for
    the policy; the text itself where it calls no tool. What it thought (``<think>``) calls nothing.

    Args:
        tools: the parameters of each tool by its name, in order: `plain` gives arguments by position, too. Whether a
            tool is there, and whether arguments fit it, is the environment's to say.
    """
    if len(text) > MOST_CHARACTERS:
        return Unread(f"the turn has {len(text)} characters; {MOST_CHARACTERS} at most are read")
    said = _said(text, syntax)
    if said is None:
        return text
    try:
        match syntax:
            case "hermes":
                calls = list(_tagged(said))
            case "llama3_json":
                calls = list(_objects(said))
            case "plain":
                calls = list(_lines(said, tools))
    except _UnreadableError as error:
        return Unread(f"{error}; a call is {FORMS[syntax]}")
    return tuple(calls) or text


def _said(text: str, syntax: Syntax) -> str | None:
    """What stands behind all thoughts; None where it has not come to an end of one. A call's arguments may hold these
    tags, too."""
    begins = {"hermes": OPEN, "llama3_json": "{"}.get(syntax)
    while True:
        before = text if begins is None else text.partition(begins)[0]
        if _THOUGHT not in before and _THOUGHT_ENDS not in before:
            return text
        _, ended, text = text.partition(_THOUGHT_ENDS)
        if not ended:
            return None


def _tagged(text: str) -> Iterator[ToolCall]:
    at = text.find(OPEN)
    for number in range(MOST_CALLS + 1):
        if at < 0:
            return
        _few(number)
        given, end = _value(text, at + len(OPEN))
        end = _past_blanks(text, end)
        if not text.startswith(CLOSE, end):
            raise _UnreadableError(f"behind a call {_seen(text, end)} stands in place of {CLOSE}")
        yield _call(given, "arguments")
        at = text.find(OPEN, end)


def _objects(text: str) -> Iterator[ToolCall]:
    text = _BEFORE.sub("", text, count=1)
    at = _past_blanks(text, 0)
    for number in range(MOST_CALLS + 1):
        if not text.startswith("{", at):
            if number and at < len(text):
                raise _UnreadableError(f"behind a call stands {_seen(text, at)}")
            return
        _few(number)
        given, end = _value(text, at)
        if not number and "name" not in given:
            return  # an answer in JSON
        yield _call(given, "parameters")
        at = _past_blanks(text, end, ";")


def _lines(text: str, tools: Mapping[str, Sequence[str]]) -> Iterator[ToolCall]:
    number = 0
    for line in text.splitlines():
        line = line.strip()
        name = _NAME.match(line)
        if name is None or not line.startswith("(", name.end()):
            continue
        if name[0] not in tools:
            if line.endswith(")") and line == text.strip():
                raise _UnreadableError(f"there is no tool {name[0]}, but {', '.join(tools) or 'none'}")
            continue  # words
        _few(number)
        yield _shallow(ToolCall(name[0], _arguments(line, name.end() + 1, name[0], tools[name[0]])))
        number += 1


def _arguments(line: str, at: int, name: str, parameters: Sequence[str]) -> dict[str, Any]:
    """The arguments of a `plain` call, from behind its bracket to the end of its line."""
    found: dict[str, Any] = {}
    at = _past_blanks(line, at)
    if not line.startswith(")", at):
        while True:
            key = _NAME.match(line, at)
            named = key is not None and line.startswith("=", equals := _past_blanks(line, key.end()))
            if key is not None and named:
                argument, at = key[0], equals + 1
            elif len(found) < len(parameters):
                argument = parameters[len(found)]
            else:
                raise _UnreadableError(f"{name} takes {len(parameters)} arguments")
            if argument in found:
                raise _UnreadableError(f"{argument} is given twice")
            found[argument], at = _value(line, at)
            at = _past_blanks(line, at)
            if not line.startswith(",", at):
                break
            at = _past_blanks(line, at + 1)
    if not line.startswith(")", at):
        raise _UnreadableError(f"in the call of {name} {_seen(line, at)} stands in place of a comma or a bracket")
    if line[at + 1 :].strip():
        raise _UnreadableError(f"behind the call of {name} stands {_seen(line, at + 1)}")
    return found


def _call(given: Any, key: str) -> ToolCall:
    if not isinstance(given, dict):
        raise _UnreadableError("a call is no JSON object")
    if not isinstance(name := given.get("name"), str) or not name:
        raise _UnreadableError("a call has no name")
    if others := given.keys() - {"name", key, "id", "type"}:
        raise _UnreadableError(f"a call has {', '.join(map(repr, sorted(others)))[:100]} beside name and {key}")
    arguments = given.get(key, {})
    if not isinstance(arguments, dict):
        raise _UnreadableError(f"{key} of {name[:100]} are no JSON object")
    return _shallow(ToolCall(name, arguments))


def _shallow(call: ToolCall) -> ToolCall:
    """The call, whose arguments whoever handles them can follow to their ends."""
    level: list[Any] = [call.arguments]
    for _ in range(MOST_LEVELS):
        level = [
            inner
            for each in level
            if isinstance(each, dict | list)
            for inner in (each.values() if isinstance(each, dict) else each)
        ]
    if any(isinstance(each, dict | list) for each in level):
        raise _UnreadableError(f"arguments of {call.name[:100]} are nested in more than {MOST_LEVELS} levels")
    return call


def _few(number: int) -> None:
    if number == MOST_CALLS:
        raise _UnreadableError(f"there are more than {MOST_CALLS} calls")


def _value(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that begins here, and where it ends."""
    try:
        found: tuple[Any, int] = _DECODER.raw_decode(text, _past_blanks(text, at))
    except json.JSONDecodeError as error:
        raise _UnreadableError(f"no JSON: {error.msg} at {_seen(text, error.pos)}") from error
    except RecursionError as error:
        raise _UnreadableError("no JSON that is read: its brackets are too deep") from error
    except ValueError as error:  # what the hooks below refuse, and numbers of thousands of digits
        raise _UnreadableError(f"no JSON that is read: {str(error).partition(';')[0]}") from error
    return found


def _past_blanks(text: str, at: int, others: str = "") -> int:
    while at < len(text) and (text[at].isspace() or text[at] in others):
        at += 1
    return at


def _seen(text: str, at: int) -> str:
    return repr(text[at : at + 20]) if text[at:].strip() else "the end"


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"{key[:100]!r} is given twice")
        found[key] = value
    return found


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits[:20]} is no finite number")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)
