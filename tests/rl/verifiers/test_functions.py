"""Function calls, judged as an independent parser judges them."""

import json
import random
import time
from itertools import islice
from typing import Any

import pytest

from rl.problems.made.functions import stream
from rl.records import Problem
from rl.verifiers.built_in.functions import check, example, verify
from rl.verifiers.reading.calls import MAX_CALLS, MAX_CHARACTERS
from tests.rl.verifiers.other_calls import independent


def call(name: str, /, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


TARGETS = [
    [call("add", a=3, b=4)],
    [call("f")],
    [call("add", a=3, b=4), call("add", a=3, b=4), call("f")],
    [call("give", to="you", many=2.5, what=["apples", "pairs"], gift=True, note=None)],
    [call("set", at={"x": {"y": [1, -2, 1e3]}, "z": ""}), call("set", at={})],
    [call("say", text='a "quoted", (bracketed) [text]; x=1'), call("say", text="")],
    [call("ns.tool-2", number=-0.5), call("add", a=10**20, b=0)],
]
SIGNS = '"()[]{},:;= \n01-.e+atrufnls\\_x'


def written(calls: list[dict[str, Any]], rng: random.Random) -> str:
    """The calls in one of their forms, in any order."""
    calls = rng.sample(calls, len(calls))
    match rng.randrange(4):
        case 0:
            return json.dumps(calls, indent=rng.choice([None, 1]))
        case 1 if len(calls) == 1:
            return json.dumps(calls[0])
        case 2:
            return json.dumps([{"name": one["name"], "parameters": one["arguments"]} for one in calls])
    each = [
        f"{one['name']}({rng.choice([', ', ',', ' , ']).join(f'{name}={json.dumps(value)}' for name, value in rng.sample([*one['arguments'].items()], len(one['arguments'])))})"  # noqa: E501
        for one in calls
    ]
    text = rng.choice([", ", "\n", "; ", " "]).join(each)
    return f"[{text}]" if rng.random() < 0.3 else text


def spoilt(text: str, rng: random.Random) -> str:
    """The text with something else in it, missing or exchanged."""
    at, to = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
    match rng.randrange(8):
        case 0:
            return text[:at] + text[at + 1 :]
        case 1:
            return text[:at] + rng.choice(SIGNS) + text[at:]
        case 2:
            return text[:at] + rng.choice(SIGNS) + text[at + 1 :]
        case 3:
            return text[:at] + text[to:]
        case 4:
            return text[:to] + text[at:]
        case 5:
            one, other = rng.choice(
                [("3", '"3"'), ("3", "3.0"), ("true", "1"), ("null", "None"), ('"', "'"), ("4", "4e0")]
            )
            return text.replace(one, other, 1)
        case 6:
            one, other = rng.choice([("(", "( "), (",", ",,"), ("=", " = "), ("a", "b"), (")", ",)"), ("2.5", "5e-1")])
            return text.replace(one, other, rng.choice([1, -1]))
    return f"{text}{rng.choice([chr(10), ',', ' ', ';', ''])}{text}"


@pytest.mark.slow
def test_two_thousand_adversarial_calls_are_judged_as_an_independent_parser_judges_them() -> None:
    rng = random.Random(14)
    seen: dict[tuple[float, float], int] = {}
    for number in range(2000):
        target = json.dumps(TARGETS[number % len(TARGETS)])
        text = written(json.loads(target), rng)
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            text = spoilt(text, rng)
        if len(text) > MAX_CHARACTERS:
            continue
        verdict = verify(Problem("", target, "t"), text)
        found = (verdict.reward, verdict.parts["format"])
        assert found == independent(text, target), (text, target, verdict)
        seen[found] = seen.get(found, 0) + 1
    assert min(seen[kind] for kind in ((1.0, 1.0), (0.0, 1.0), (0.0, 0.0))) > 200, seen


ADD = json.dumps([call("add", a=3, b=4), call("f")])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("f()\nadd(b=4, a=3)", "right"),
        ("<think>f()</think>\nadd(a=3, b=4), f()", "right"),
        ("Here:\n```python\n[add(a=3, b=4), f()]\n```", "right"),
        ("```\nadd(a=3, b=4)\nf()```", "right"),
        ("```json\n" + ADD + "\n```\nThat is all.", "right"),
        (
            'First <tool_call>{"name": "f", "arguments": {}}</tool_call> then <tool_call>\n'
            '{"name": "add", "arguments": {"a": 3, "b": 4.0}}\n</tool_call>',
            "right",
        ),
        ("add(a=3, b=4)\nf()<|im_end|>", "right"),
        ("", "empty"),
        ("  \n", "empty"),
        ("I would add 3 and 4.", "no_call"),
        ("[]", "no_call"),
        ("[add(a=3, b=4), f()", "unparsable"),
        ("Sure: add(a=3, b=4), f()", "no_call"),
        ("add(a=3, b=4), f(). Done.", "unparsable"),
        ("add(3, 4), f()", "unparsable"),
        ("add(a=3, b=2+2), f()", "unparsable"),
        ("add(a=3, b=f())", "unparsable"),
        ("__import__('os').system('true')", "unparsable"),
        ("```\nadd(a=3, b=4)\nf()", "unparsable"),
        ('<tool_call>{"name": "f", "arguments": {}}', "unparsable"),
        ('</tool_call>{"name": "f", "arguments": {}}<tool_call>', "unparsable"),
        ('{"name": "f", "arguments": "{}"}', "unparsable"),
        ('{"name": "f", "arguments": {}, "id": 1}', "unparsable"),
        ('{"name": "f", "name": "add", "arguments": {}}', "unparsable"),
        ('{"function": {"name": "f", "arguments": {}}}', "unparsable"),
        ("add(a=NaN, b=4)", "unparsable"),
        ("add(a=1e999, b=4)", "unparsable"),
        ("add(a=" + "9" * 5000 + ", b=4)", "unparsable"),
        ("f(" + "[" * 4000, "unparsable"),
        ("f(a=" + "[" * 33 + "]" * 33 + ")", "unparsable"),
        ("f()" + " f()" * MAX_CALLS, "unparsable"),
        ("f(" * 3000, "unparsable"),
        ("f() " * 3000, "unparsable"),
        ("add(a=3, b=4)", "wrong_function"),
        ("add(a=3, b=4), f(), f()", "wrong_function"),
        ("add(a=3, b=4), g()", "wrong_function"),
        ("add(a=3), f()", "wrong_arguments"),
        ("add(a=3, b=4, c=5), f()", "wrong_arguments"),
        ('add(a="3", b=4), f()', "wrong_type"),
        ("add(a=true, b=4), f()", "wrong_type"),
        ("add(a=[3], b=4), f()", "wrong_type"),
        ("add(a=4, b=3), f()", "wrong_value"),
        ("add(a=3.0000001, b=4), f()", "wrong_value"),
    ],
)
def test_each_reason(text: str, reason: str) -> None:
    verdict = verify(Problem("", ADD, "t"), text)
    form = float(reason not in ("empty", "no_call", "unparsable"))
    right = float(reason == "right")
    assert (verdict.reason, verdict.reward, verdict.parts) == (reason, right, {"format": form, "right": right})


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>" * 700, "<tool_call></tool_call>" * 340, "```" * 2700, "f(a=" * 2000, "[" * 8000, '{"a":' * 1600,
        "f(" + "a" * 8000, " " * 8000 + "(", "a" * 8192, "f(a=" + '"\\u' * 2000, "x," * 4000, "f(a=1," * 1300,
        "x" * 10_000_000, "<think>" * 100_000,
    ],
)  # fmt: skip
def test_hostile_texts_are_judged_at_once(text: str) -> None:
    begin = time.perf_counter()
    assert verify(Problem("", ADD, "t"), text).reward == 0
    assert time.perf_counter() - begin < 0.5


def test_a_target_that_lists_no_calls_is_a_broken_problem() -> None:
    check(Problem("", '{"name": "f", "arguments": {}}', "t"))
    for target in (
        "",
        "f()",
        "[]",
        '[{"name": "f"}]',
        '{"name": "f", "arguments": []}',
        '{"name": "", "arguments": {}}',
    ):
        for of in (check, lambda problem: verify(problem, "f()")):
            with pytest.raises(ValueError, match=r"."):
                of(Problem("", target, "t"))


def test_the_example_of_each_made_problem_is_right_and_its_target_too() -> None:
    for problem in islice(stream(3, 1), 300):
        check(problem)
        assert verify(problem, example(problem)).reward == verify(problem, problem.target).reward == 1
        assert [independent(text, problem.target) for text in (example(problem), problem.target)] == [(1, 1)] * 2
