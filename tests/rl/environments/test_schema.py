"""Schemas, compared with those of transformers, and arguments that fit them or do not."""

from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, Optional, Union

import pytest
from transformers.utils import get_json_schema

from rl.environments.schema import SchemaError, UnfitError, fitted, schema_of


class Side(Enum):
    LEFT = "left"
    RIGHT = 2


def plain(number: int, share: float, name: str, really: bool = False) -> str:
    """Do it.

    Args:
        number: how many
        share: of all,
            each of which is one: or two
        name: what it is called
        really:   whether
    Returns:
        what came of it
    Raises:
        ValueError: never
    """
    return f"{number} {share} {name} {really}"


def nested(
    every: list[int],
    pairs: dict[str, list[float]],
    point: tuple[int, str],
    maybe: int | None,
    either: str | int,
    mixed: Optional[Union[list[int], str]] = None,  # noqa: UP007, UP045  as older code writes it
    bare: list = [],  # noqa: B006
    anything: Any = 0,
) -> dict[str, Any]:
    """
    Nested
    things.

    Args:
        every: a
        pairs: b

        point: c
        maybe: d
        either: e
        mixed: f
        bare: g
        anything: h
    """
    return {"": [every, pairs, point, maybe, either, mixed, bare, anything]}


def chosen(one: Literal["a", "b"], two: Literal[1, "x", None], three: Side, tea: str) -> None:
    """Choose.

    Args:
        one: first
        two: second
        three: third
        tea: which (choices: ["green ", "black"])
    """


def late(number: "int", *, name: "str | None" = None) -> "int":
    """Late hints.

    Args:
        number: one
        name: two
    """
    return number + len(name or "")


def nothing() -> Side:
    """Nothing is asked."""
    return Side.LEFT


class Tools:
    def method(self, number: int) -> str:
        """Of a class.

        Args:
            number: one
        """
        return str(number)


@pytest.mark.parametrize("tool", [plain, nested, chosen, late, nothing, Tools.method, Tools().method])
def test_the_schema_of_a_tool_is_that_of_transformers(tool: Callable[..., Any]) -> None:
    assert schema_of(tool) == get_json_schema(tool)


def undocumented(number: int) -> int:
    return number


def untyped(number) -> int:  # type: ignore[no-untyped-def]
    """Untyped.

    Args:
        number: one
    """
    return int(number)


def undescribed(number: int, name: str) -> str:
    """Undescribed. Args: number: on the same line

    Args:
        number: one
    """
    return name * number


def starred(*numbers: int) -> int:
    """Starred.

    Args:
        numbers: all
    """
    return sum(numbers)


def custom(of: Tools) -> str:
    """Custom.

    Args:
        of: one
    """
    return of.method(1)


def unread(tea: str) -> str:
    """Unread.

    Args:
        tea: which (choices: green, black)
    """
    return tea


@pytest.mark.parametrize(
    ("tool", "said"),
    [
        (undocumented, "undocumented has no docstring, which the policy is shown; one that is no tool begins with _"),
        (untyped, "untyped: its argument number has no type; write number: int, or what it is"),
        (undescribed, "undescribed: its docstring does not describe name; below a line 'Args:' write 'name: …'"),
        (starred, "starred: *numbers: int cannot be given by name, as a call's arguments are"),
        (custom, rf"custom: its argument of is {Tools!r}, which JSON cannot hold"),
        (unread, 'unread: the choices of tea are no list such as ["a", "b"]'),
    ],
)
def test_what_a_tool_lacks_is_one_line(tool: Callable[..., Any], said: str) -> None:
    with pytest.raises(SchemaError) as raised:
        schema_of(tool)
    assert str(raised.value) == said


def arguments(tool: Callable[..., Any], **given: Any) -> dict[str, Any]:
    return fitted(given, schema_of(tool)["function"]["parameters"])


def test_arguments_that_fit_are_given_as_their_types_say() -> None:
    found = arguments(plain, number=3.0, share=2, name="x")
    assert found == {"number": 3, "share": 2, "name": "x"}
    assert type(found["number"]) is int
    given = {"every": [1], "pairs": {"a": [1, 2.5]}, "point": [1, "x"], "maybe": None, "either": "x"}
    assert arguments(nested, **given) == given
    assert arguments(nested, **{**given, "either": 3, "mixed": [1], "anything": {"a": [None]}, "bare": [[]]})
    assert arguments(chosen, one="a", two=None, three=2, tea="green")["three"] == 2


@pytest.mark.parametrize(
    ("tool", "changes", "said"),
    [
        (plain, {"number": "3"}, 'number: "3" is no integer'),
        (plain, {"number": True}, "number: true is no integer"),
        (plain, {"number": 3.5}, "number: 3.5 is no integer"),
        (plain, {"number": None}, "number: null is no integer"),
        (plain, {"share": "1"}, 'share: "1" is no number'),
        (plain, {"share": False}, "share: false is no number"),
        (plain, {"name": 1}, "name: 1 is no string"),
        (plain, {"really": 1}, "really: 1 is no boolean"),
        (plain, {"other": 1}, 'no argument "other"; it takes number, share, name, really'),
        (nested, {"every": [1, "x"]}, 'every[1]: "x" is no integer'),
        (nested, {"every": {}}, "every: {} is no array"),
        (nested, {"pairs": {"a": ["x"]}}, 'pairs.a[0]: "x" is no number'),
        (nested, {"point": [1]}, "point: has 1 values, not 2"),
        (nested, {"either": 1.5}, "either: 1.5 is no integer or string"),
        (nested, {"mixed": 1}, "mixed: 1 is no such value"),
        (chosen, {"one": "c"}, 'one: "c" is none of ["a", "b"]'),
        (chosen, {"two": True}, 'two: true is none of [1, "x", null]'),
        (chosen, {"tea": "x" * 100}, f'tea: "{"x" * 58}… is none of ["green", "black"]'),
    ],
)
def test_arguments_that_do_not_fit_say_which(tool: Callable[..., Any], changes: dict[str, Any], said: str) -> None:
    fit = {
        plain: {"number": 1, "share": 1.0, "name": "x"},
        nested: {"every": [], "pairs": {}, "point": [1, ""], "maybe": 1, "either": 1},
        chosen: {"one": "a", "two": 1, "three": "left", "tea": "black"},
    }
    arguments(tool, **fit[tool])
    with pytest.raises(UnfitError) as raised:
        arguments(tool, **{**fit[tool], **changes})
    assert str(raised.value) == said


def test_an_argument_without_a_default_has_to_be_there() -> None:
    with pytest.raises(UnfitError, match=r"^no value for number, name$"):
        arguments(plain, share=1.0)
    with pytest.raises(UnfitError, match=r'^no argument "a"; it takes none$'):
        arguments(nothing, a=1)
