"""What a class is as an environment, and what it is told where it is none: one line."""
# ruff: noqa: ARG001, ARG002, ARG005  methods that are looked at, not called

import functools
from typing import Any

import pytest

from rl.environments.interface import ContractError, interface_of
from rl.environments.turn import Turn


class Good:
    def __init__(self, size: int = 3) -> None:
        self.size = size

    def reset(self, target, **_):
        pass

    def second(self) -> str:
        """The second."""
        return "2"

    def first(self) -> str:
        """The first."""
        return "1"

    @staticmethod
    def apart(number: int) -> str:
        """Without self.

        Args:
            number: one
        """
        return str(number)

    @property
    def size_twice(self) -> int:
        return 2 * self.size

    def _own(self, anything):
        pass

    def get_reward(self):
        return 1


class Game:
    def reset(self, **columns):
        pass

    def step(self, text):
        return None


class Both(Good, Game):
    pass


class Unrewarded:
    def reset(self, **columns):
        pass

    def look(self) -> str:
        """Look."""
        return "nothing"


class InTurns(Unrewarded):
    def win(self) -> "Turn":
        """Win."""
        return Turn("won", 1.0, True)


def names(cls: type) -> list[str]:
    return [tool["function"]["name"] for tool in interface_of(cls).tools]


def test_public_methods_are_tools_by_their_names_and_step_takes_text() -> None:
    assert names(Good) == ["apart", "first", "second"]
    assert interface_of(Good).step is False
    assert interface_of(Game) == interface_of(Game).__class__((), step=True)
    assert names(Both) == names(Good)
    assert interface_of(Both).step
    assert names(InTurns) == ["look", "win"]


def without(**changed: Any) -> type:
    """Game with other methods."""
    return type("Bad", (Game,), changed)


async def _async(self):
    """Later."""


async def _generated(self):
    """Later, again and again."""
    yield 1


@functools.wraps(_async)
def _wrapped(self):
    return _async(self)


def _renamed(self):
    """Under another name."""
    return ""


def _unknown(self, of: "Nowhere"):  # type: ignore[name-defined]  # noqa: F821
    """Of a type that is not there.

    Args:
        of: one
    """


@pytest.mark.parametrize(
    ("cls", "said"),
    [
        (without(step=_async), "Bad.step is async; write a plain def: it has a process of its own"),
        (without(tool=_generated), "Bad.tool is async; write a plain def: it has a process of its own"),
        (without(tool=_wrapped), "Bad.tool is async; write a plain def: it has a process of its own"),
        (without(reset=None), "Bad has no reset; write: def reset(self, **columns): …"),
        (
            without(reset=lambda self, target: None),
            "Bad.reset is given every column of a problem; write **_ behind those that it uses",
        ),
        (without(step=lambda self: None), "Bad.step is called as step(text): too many positional arguments"),
        (
            without(get_reward=lambda self, text: 1),
            "Bad.get_reward is called as get_reward(): missing a required argument: 'text'",
        ),
        (
            without(__init__=lambda self, size: None),
            "Bad is made without arguments, and missing a required argument: 'size'",
        ),
        (without(renamed=_renamed), "Bad.renamed is named _renamed; decorate it with functools.wraps"),
        (Unrewarded, "Unrewarded gives no reward; write: def get_reward(self): …"),
        (without(_unknown=_unknown, step=None), "Bad has neither a tool (a public method) nor step(self, text)"),
    ],
)
def test_a_contradiction_is_one_line(cls: type, said: str) -> None:
    with pytest.raises(ContractError) as raised:
        interface_of(cls)
    assert str(raised.value) == said


def test_what_a_tool_lacks_names_the_class() -> None:
    def undocumented(self):
        return ""

    def unknown(self, of: "Nowhere"):  # type: ignore[name-defined]  # noqa: F821
        """Of a type that is not there.

        Args:
            of: one
        """

    with pytest.raises(ContractError, match=r"^Bad\.undocumented has no docstring, which the policy is shown; one "):
        interface_of(without(undocumented=undocumented))
    with pytest.raises(ContractError, match=r"^Bad: a tool's type is not known: name 'Nowhere' is not defined$"):
        interface_of(without(unknown=unknown))
