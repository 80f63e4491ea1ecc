"""Calls of tools, read from what a policy wrote: what is read is what was meant, and all else is said in a line."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.environments.calls import FORMS, MOST_CALLS, MOST_CHARACTERS, Syntax, action_of, explained
from rl.environments.turn import ToolCall, Unread, as_json, of_json

TOOLS = {"guess": ["number"], "say": ["a", "b"], "stop": []}
SYNTAXES: list[Syntax] = ["hermes", "llama3_json", "plain"]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=3,
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True)
CALLS = st.lists(st.tuples(NAMES, st.dictionaries(NAMES, JSON, max_size=3)), min_size=1, max_size=4)


def written(syntax: Syntax, calls: list[tuple[str, dict[str, Any]]]) -> str:
    """By each family's own form."""
    match syntax:
        case "hermes":
            each = [json.dumps({"name": name, "arguments": given}) for name, given in calls]
            return "I call:\n" + "\n".join(f"<tool_call>\n{one}\n</tool_call>" for one in each)
        case "llama3_json":
            return "; ".join(json.dumps({"name": name, "parameters": given}) for name, given in calls)
        case "plain":
            inside = [", ".join(f"{key}={json.dumps(value)}" for key, value in given.items()) for _, given in calls]
            return "so:\n" + "\n".join(f"{name}({one})" for (name, _), one in zip(calls, inside, strict=True))


@pytest.mark.parametrize("syntax", SYNTAXES)
@settings(max_examples=40)
@given(calls=CALLS)
def test_calls_are_read_as_they_were_meant(syntax: Syntax, calls: list[tuple[str, dict[str, Any]]]) -> None:
    tools = {name: list(given) for name, given in calls}
    assert action_of(written(syntax, calls), syntax, tools) == tuple(ToolCall(name, given) for name, given in calls)


def test_arguments_may_be_given_by_position_in_the_plain_form() -> None:
    assert action_of("guess(32)", "plain", TOOLS) == (ToolCall("guess", {"number": 32}),)
    assert action_of('say( "x, (y)" ,b = [1, {"k": null}] )', "plain", TOOLS) == (
        ToolCall("say", {"a": "x, (y)", "b": [1, {"k": None}]}),
    )
    assert action_of(" stop()\n", "plain", TOOLS) == (ToolCall("stop", {}),)


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "forty-two",
        '{"answer": 42}',
        "f(x) = 3, so it is 9",
        "it is (42)",
        "</tool_call>",
        "guess 32",
        '["guess", 32]',
    ],
)
def test_a_turn_that_calls_nothing_is_its_text(syntax: Syntax, text: str) -> None:
    assert action_of(text, syntax, TOOLS) == text


@pytest.mark.parametrize("thought", ["<think>{}</think>", "<think>{}", "x</think><think>{}"])
@pytest.mark.parametrize("syntax", SYNTAXES)
def test_what_was_thought_calls_nothing(syntax: Syntax, thought: str) -> None:
    text = thought.format(written(syntax, [("guess", {"number": 1})]))
    assert action_of(text, syntax, TOOLS) == text


@pytest.mark.parametrize("syntax", SYNTAXES)
def test_a_call_behind_a_thought_counts(syntax: Syntax) -> None:
    call = written(syntax, [("guess", {"number": 1})])
    assert action_of(f"<think>\nguess(2)\n</think>\n\n{call}", syntax, TOOLS) == (ToolCall("guess", {"number": 1}),)


@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("words", ["</think>", "<think>", "<think>so</think>"])
def test_a_call_may_be_about_thoughts(syntax: Syntax, words: str) -> None:
    if syntax != "plain":
        assert action_of(written(syntax, [("say", {"a": words})]), syntax, TOOLS) == (ToolCall("say", {"a": words}),)


def call_of_depth(levels: int) -> str:
    inner = '{"x": ' * levels + "1" + "}" * levels
    return f'<tool_call>{{"name": "f", "arguments": {inner}}}</tool_call>'


def test_arguments_may_be_nested() -> None:
    (call,) = action_of(call_of_depth(32), "hermes", TOOLS)
    assert of_json(as_json((call,))) == (call,)


@pytest.mark.parametrize(
    ("syntax", "text", "why"),
    [
        ("hermes", "<tool_call>", "no JSON: Expecting value at the end"),
        ("hermes", '<tool_call>{"name": "f"}', "behind a call the end stands in place of </tool_call>"),
        ("hermes", '<tool_call>{"name": "f"} so</tool_call>', "behind a call 'so</tool_call>' stands in place of"),
        ("hermes", "<tool_call>guess(3)</tool_call>", "no JSON: Expecting value at 'guess(3)</tool_call>'"),
        ("hermes", "<tool_call>[1]</tool_call>", "a call is no JSON object"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', "a call has no name"),
        ("hermes", '<tool_call>{"name": 3}</tool_call>', "a call has no name"),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "arguments of f are no JSON object"),
        ("hermes", '<tool_call>{"name": "f", "name": "g"}</tool_call>', "no JSON that is read: 'name' is given twice"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>', "no JSON that is read: NaN is no"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"x": 1e999}}</tool_call>', "no JSON that is read: 1e999 is"),
        ("hermes", '<tool_call>{"name": ' + "9" * 5000, "no JSON that is read: Exceeds the limit"),
        ("hermes", "<tool_call>" + "[" * 50_000, "no JSON that is read: its brackets are too deep"),
        ("hermes", '<tool_call>{"name": "f"}</tool_call>' * 17, "there are more than 16 calls"),
        (
            "hermes",
            '<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>',
            "a call has 'parameters' beside name",
        ),
        ("llama3_json", '{"name": "f", "arguments": {"x": 1}}', "a call has 'arguments' beside name and parameters"),
        ("hermes", call_of_depth(33), "arguments of f are nested in more than 32 levels"),
        ("hermes", call_of_depth(700), "arguments of f are nested in more than 32 levels"),
        ("plain", f"guess({'[' * 40}{']' * 40})", "arguments of guess are nested in more than 32 levels"),
        ("llama3_json", '{"name": "f", "parameters": [1]}', "parameters of f are no JSON object"),
        ("llama3_json", '{"name": "f"} is what I call', "behind a call stands 'is what I call'"),
        ("llama3_json", '{"name"', "no JSON: Expecting ':' delimiter at the end"),
        ("llama3_json", '{"name": "f"};' * 17, "there are more than 16 calls"),
        ("plain", "guess(x)", "no JSON: Expecting value at 'x)'"),
        ("plain", "guess(3", "in the call of guess the end stands in place of a comma or a bracket"),
        ("plain", "guess(3) it is", "behind the call of guess stands ' it is'"),
        ("plain", "guess(3, 4)", "guess takes 1 arguments"),
        ("plain", "say(3, a=4)", "a is given twice"),
        ("plain", "ask(3)", "there is no tool ask, but guess, say, stop"),
        ("plain", "guess(1)\n" * 17, "there are more than 16 calls"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line_with_the_form_of_a_call(syntax: Syntax, text: str, why: str) -> None:
    found = action_of(text, syntax, TOOLS)
    assert isinstance(found, Unread)
    assert found.why.startswith(why)
    assert found.why.endswith(f"; a call is {FORMS[syntax]}")
    assert "\n" not in found.why
    assert len(found.why) < 300


PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    '{"name"',
    '"f"',
    *':{}[],()=;"\\ \n',
    "guess",
    "1",
    "1e9",
    "NaN",
]
OTHERS = ["<|python_tag|>", "\ud800", "é"]


@pytest.mark.parametrize("syntax", SYNTAXES)
@given(text=st.lists(st.sampled_from([*PIECES, *OTHERS])).map("".join))
def test_nothing_raises(syntax: Syntax, text: str) -> None:
    found = action_of(text, syntax, TOOLS)
    assert found == text or isinstance(found, Unread) or all(isinstance(call, ToolCall) for call in found)


HOSTILE = {
    "brackets": "<tool_call>" + "[" * (MOST_CHARACTERS - 20),
    "objects": "{" * MOST_CHARACTERS,
    "calls": "guess(" * (MOST_CHARACTERS // 6),
    "lines": "guess(1)\n" * (MOST_CHARACTERS // 9),
    "words": "f(1) \n" * (MOST_CHARACTERS // 6),
    "tags": "<tool_call>" * (MOST_CHARACTERS // 11),
    "blanks": "<tool_call>" + " " * (MOST_CHARACTERS - 20),
    "keys": '<tool_call>{"name": {' + ",".join(f'"{key}":1' for key in range(9000)) + "}}",
    "thoughts": "<think></think>" * (MOST_CHARACTERS // 15),
    "digits": "guess(" + "9" * (MOST_CHARACTERS - 10) + ")",
    "escapes": 'guess("' + "\\" * (MOST_CHARACTERS - 10) + '")',
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_take_no_time(name: str) -> None:
    started = time.process_time()
    for syntax in SYNTAXES:
        action_of(HOSTILE[name], syntax, TOOLS)
    assert time.process_time() - started < 0.5  # milliseconds; minutes where work grows with the square


def test_a_turn_that_is_too_long_is_not_read() -> None:
    found = action_of("guess(1)" + " " * MOST_CHARACTERS, "plain", TOOLS)
    assert found == Unread(f"the turn has {MOST_CHARACTERS + 8} characters; {MOST_CHARACTERS} at most are read")


def test_tools_are_explained_to_who_was_taught_no_form() -> None:
    schema = {"type": "function", "function": {"name": "guess", "parameters": {"type": "object", "properties": {}}}}
    first, tool, form = explained([schema]).split("\n")
    assert json.loads(tool) == schema["function"]
    assert form.endswith(FORMS["plain"])
    assert first.isascii()


def test_forms_and_limits_are_such_as_a_small_tokenizer_can_say() -> None:
    assert all(form.isascii() for form in FORMS.values())
    assert MOST_CALLS < 100
