"""What an episode's object answers: observations, rewards and ends."""

import math
from typing import Any

import pytest

from rl.environments.instance import MAX_CALLS, MAX_TEXT, Instance, seed
from rl.environments.interface import ContractError, interface_of
from rl.environments.turn import Action, ToolCall, Turn, Unread, as_json, of_json


class Shop:
    """Tools, and step for what is said beside them."""

    def reset(self, goods, **_):
        self.goods, self.over = dict(goods), False
        return f" There are {', '.join(goods)}."

    def buy(self, name: str, many: int = 1) -> str:
        """Buy.

        Args:
            name: of what
            many: how many
        """
        if self.goods.get(name, 0) < many:
            raise ValueError(f"there are {self.goods.get(name, 0)} of {name}")
        self.goods[name] -= many
        return f"{many} {name}"

    def sell(self, what: Any):  # type: ignore[no-untyped-def]
        """Sell.

        Args:
            what: which Turn to give back
        """
        return {
            "none": None,
            "number": 3,
            "turn": Turn("sold", 0.5),
            "silent": Turn(None, 1),
            "end": Turn("", 2, True),
        }[what]

    def broken(self) -> str:
        """Break."""
        return str(self.goods["nothing"])

    def odd(self) -> Turn:
        """Reward oddly."""
        return Turn("x", math.nan)

    def leave(self) -> str:
        """Go."""
        self.over = True
        return "bye"

    def step(self, text):
        return {"go": None, "stay": "here", "turn": Turn("well", -1), "silent": Turn(reward=3), "odd": 3}[text]


def made(cls: type = Shop) -> Instance:
    instance = Instance(cls, interface_of(cls))
    assert instance.reset({"goods": {"tea": 2}, "prompt": "?"}) == {"observations": [" There are tea."], "over": False}
    return instance


def call(name: str, /, **arguments: Any) -> ToolCall:
    return ToolCall(name, arguments)


def test_each_call_has_an_observation_and_what_the_policy_did_wrong_is_one() -> None:
    shop = made()
    calls = (
        call("buy", name="tea"), call("buy", name="tea", many=2), call("buy", name=3), call("buy"),
        call("steal", name="tea"), call("reset", goods={}), call("_over"), call("sell", what="none"),
    )  # fmt: skip
    assert shop.act(calls) == {
        "observations": [
            "1 tea", "error: there are 1 of tea", "error: buy: name: 3 is no string",
            "error: buy: no value for name", 'error: no tool "steal"; there are broken, buy, leave, odd, sell',
            'error: no tool "reset"; there are broken, buy, leave, odd, sell',
            'error: no tool "_over"; there are broken, buy, leave, odd, sell', "None",
        ],
        "reward": 0.0, "over": False, "refused": 6,
    }  # fmt: skip
    assert shop.act(Unread("no JSON"))["observations"] == ["error: no JSON"]


def test_a_turn_has_a_reward_and_may_end_the_episode() -> None:
    shop = made()
    found = shop.act((call("sell", what="turn"), call("sell", what="silent"), call("sell", what="number")))
    assert found == {"observations": ["sold", "", "3"], "reward": 1.5, "over": False, "refused": 0}
    found = shop.act((call("sell", what="end"), call("buy", name="tea")))
    assert found == {"observations": ["", "error: the episode is over"], "reward": 2.0, "over": True, "refused": 1}
    assert shop.reward() == {"reward": 3.5, "reason": "graded", "parts": {}}
    found = made().act((call("leave"), call("leave")))
    assert found == {"observations": ["bye", "error: the episode is over"], "reward": 0.0, "over": True, "refused": 1}


def test_step_takes_the_text_and_none_ends_it() -> None:
    shop = made()
    for text, observations, reward, over in (
        ("stay", ["here"], 0, False), ("turn", ["well"], -1, False), ("silent", [], 3, False), ("go", [], 0, True),
    ):  # fmt: skip
        assert shop.act(text) == {"observations": observations, "reward": reward, "over": over, "refused": 0}


class Tools:
    def reset(self, **_):
        return None

    def nothing(self) -> str:
        """Nothing."""
        return ""

    def get_reward(self):
        return {"format": 0.5, "right": 0.25}, "nearly"


def test_a_text_without_calls_ends_an_episode_of_tools_and_get_reward_says_what_it_is_worth() -> None:
    tools = Instance(Tools, interface_of(Tools))
    assert tools.reset({"target": "x"}) == {"observations": [], "over": False}
    assert tools.act("42") == {"observations": [], "reward": 0.0, "over": True, "refused": 0}
    assert tools.reward() == {"reward": 0.75, "reason": "nearly", "parts": {"format": 0.5, "right": 0.25}}


@pytest.mark.parametrize(
    ("action", "error", "said"),
    [
        ((call("broken"),), KeyError, "nothing"),
        ((call("odd"),), ContractError, "returned a Turn of reward nan; it is finite, at most"),
        ("odd", ContractError, "step returned 3; give a text, a Turn, or None at the end"),
        ("neither", KeyError, "neither"),
    ],
)
def test_what_the_environment_does_wrong_goes_through(action: Action, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        made().act(action)


def test_texts_and_calls_are_bounded() -> None:
    class Long(Tools):
        def much(self) -> str:
            """Much."""
            return "\ud800" + "x" * 10_000_000

    long = Instance(Long, interface_of(Long))
    (text,) = long.act((call("much"),))["observations"]
    assert text == "?" + "x" * (MAX_TEXT - 1) + " … (cut: 10000001 characters)"
    found = long.act(tuple(call("nothing") for _ in range(MAX_CALLS + 2)))
    assert (len(found["observations"]), found["refused"]) == (MAX_CALLS + 2, 2)
    assert found["observations"][-1] == f"error: at most {MAX_CALLS} calls in one turn"


def test_random_numbers_are_those_of_the_key() -> None:
    import random

    import numpy as np

    drawn = []
    for key in ("a", "a", "b"):
        seed(key)
        drawn.append((random.random(), float(np.random.random())))
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[2][0]
    assert drawn[0][1] != drawn[2][1]


def test_an_action_is_the_same_as_a_text_and_back() -> None:
    actions = ["a", "", (call("f", a=1, b=[None]),), (call("f", a=1.0),), (call("f", a=True),), Unread("why"), ()]
    texts = [as_json(action) for action in actions]
    assert len(set(texts)) == len(texts)
    assert [of_json(text) for text in texts] == actions
    assert as_json((call("f", a=1, b=2),)) == as_json((call("f", b=2, a=1),))
