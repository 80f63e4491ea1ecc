"""An environment of one episode: the class's object, and what it answers. It runs in the episode's own process, but for
those of `in_process`."""

import json
import math
import random
import sys
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from rl.environments.interface import ContractError, Interface
from rl.environments.schema import UnfitError, fitted
from rl.environments.turn import Action, ToolCall, Turn, Unread
from rl.verifiers.isolation.child import verdict
from rl.verifiers.parts import MAX_REWARD

MAX_TEXT = 8192  # characters of an observation
MAX_CALLS = 16  # that one turn makes
CUT = " … (cut: {} characters)"
ENDED = "error: the episode is over"


class Instance:
    """One episode. What a method raises goes through: it is the environment's fault, but for a ValueError of a tool or
    of step, which says what the policy did wrong."""

    def __init__(self, cls: type, interface: Interface) -> None:
        self._tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in interface.tools}
        self._interface, self._of = interface, cls()
        self._rewards: list[float] = []

    def reset(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """What is added to the prompt. Raises what the environment does, and ContractError."""
        said = self._of.reset(**columns)
        if said is not None and not isinstance(said, str):
            raise ContractError(f"reset returned {_kind(said)}; give a text to add to the prompt, or None")
        return {"observations": [] if said is None else [bounded(said)], "over": self._over}

    def act(self, action: Action) -> dict[str, Any]:
        """The observations of a turn, one for each call, its reward, and whether the episode is over. Raises what the
        environment does, and ContractError."""
        if isinstance(action, Unread):
            return self._outcome([Turn(f"error: {action.why}")], 1)
        if isinstance(action, str):
            if self._interface.step:
                return self._outcome(*self._tried(self._of.step, {"text": action}, ends=True))
            return self._outcome([Turn(over=True)], 0)  # it calls no tool any more
        turns: list[Turn] = []
        refused = 0
        for number, call in enumerate(action):
            if number >= MAX_CALLS:
                turns.append(Turn(f"error: at most {MAX_CALLS} calls in one turn"))
            elif any(turn.over for turn in turns) or self._over:
                turns.append(Turn(ENDED))
            else:
                done, failed = self._called(call)
                turns += done
                refused += failed
                continue
            refused += 1
        return self._outcome(turns, refused)

    def reward(self) -> dict[str, Any]:
        """Of the whole episode: what get_reward says, as a verifier's function does, or the sum over its turns."""
        get_reward = getattr(self._of, "get_reward", None)
        return verdict(math.fsum(self._rewards) if get_reward is None else get_reward())

    @property
    def _over(self) -> bool:
        return bool(getattr(self._of, "over", False))

    def _called(self, call: ToolCall) -> tuple[list[Turn], int]:
        if call.name not in self._tools:
            return [Turn(f"error: no tool {_quoted(call.name)}; there are {', '.join(self._tools) or 'none'}")], 1
        try:
            arguments = fitted(call.arguments, self._tools[call.name])
        except UnfitError as error:
            return [Turn(f"error: {call.name}: {error}")], 1
        turns, refused = self._tried(getattr(self._of, call.name), arguments, ends=False)
        return [replace(turn, text=turn.text or "") for turn in turns], refused

    def _tried(self, method: Callable[..., Any], arguments: dict[str, Any], ends: bool) -> tuple[list[Turn], int]:
        """The turn that a method makes of it; ``ends`` says that None, from step, ends the episode."""
        try:
            said = method(**arguments) if not ends else method(arguments["text"])
        except ValueError as error:
            return [Turn(f"error: {error}" if str(error) else "error")], 1
        if isinstance(said, Turn):
            return [_checked(said)], 0
        if ends and said is None:
            return [Turn(over=True)], 0
        if ends and not isinstance(said, str):
            raise ContractError(f"step returned {_kind(said)}; give a text, a Turn, or None at the end")
        return [Turn(said if isinstance(said, str) else str(said))], 0

    def _outcome(self, turns: list[Turn], refused: int) -> dict[str, Any]:
        reward = math.fsum(turn.reward for turn in turns)
        self._rewards.append(reward)
        return {
            "observations": [bounded(turn.text) for turn in turns if turn.text is not None],
            "reward": reward,
            "over": self._over or any(turn.over for turn in turns),
            "refused": refused,
        }


def seed(key: str) -> None:
    """The random numbers of this process are those of the key."""
    random.seed(key)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(zlib.crc32(key.encode()))


def bounded(text: str) -> str:
    """A text that every tokenizer takes, of at most MAX_TEXT characters."""
    cut = text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + CUT.format(len(text))
    return cut.encode("utf-8", "replace").decode("utf-8")


def _checked(turn: Turn) -> Turn:
    if turn.text is not None and not isinstance(turn.text, str):
        raise ContractError(f"returned a Turn whose text is {_kind(turn.text)}")
    if isinstance(turn.reward, str | bytes) or not hasattr(turn.reward, "__float__"):
        raise ContractError(f"returned a Turn whose reward is {_kind(turn.reward)}; a reward is a number")
    reward = float(turn.reward)
    if not abs(reward) <= MAX_REWARD:
        raise ContractError(f"returned a Turn of reward {reward}; it is finite, at most {MAX_REWARD:.0e}")
    return Turn(turn.text, reward, bool(turn.over))


def _kind(value: object) -> str:
    text = " ".join(repr(value).split())
    return f"{text[:59]}…" if len(text) > 60 else text


def _quoted(name: object) -> str:
    return json.dumps(str(name)[:60])
