"""What a policy and an environment say to each other.

A class of the user's is an environment by the convention of TRL 1.16 (`environment_factory` of
trl/trainer/grpo_trainer.py), so that the same class runs there: see docs/environments.md.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Turn:
    """What a method of an environment may return in place of a text."""

    text: str | None = None  # the observation; none for nothing to say
    reward: float = 0.0  # of this turn
    over: bool = False  # whether the episode has ended


@dataclass(frozen=True)
class ToolCall:
    """A tool's call, as it was read in a turn of the policy's."""

    name: str
    arguments: Mapping[str, Any]  # by name: what JSON can hold


@dataclass(frozen=True)
class Unread:
    """A turn whose calls could not be read: the environment is not asked, the policy is told why."""

    why: str


Action = str | tuple[ToolCall, ...] | Unread  # a turn of the policy's: its text where it calls no tool


def as_json(action: Action) -> str:
    """The action as a text, the same for the same action: 1, 1.0 and true are three arguments, in whatever order."""
    return json.dumps(
        action if isinstance(action, str) else {"unread": action.why} if isinstance(action, Unread) else _calls(action),
        sort_keys=True,
    )


def of_json(text: str) -> Action:
    """The action of such a text."""
    read = json.loads(text)
    if isinstance(read, dict):
        return Unread(read["unread"])
    return read if isinstance(read, str) else tuple(ToolCall(**call) for call in read)


def is_action(text: str) -> bool:
    """Whether it is such a text."""
    try:
        return as_json(of_json(text)) == text
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return False


def _calls(calls: tuple[ToolCall, ...]) -> list[dict[str, Any]]:
    return [asdict(call) for call in calls]
