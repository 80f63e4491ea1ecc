"""What a policy and an environment say to each other."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """A tool's call, as it was read in a turn of the policy's."""

    name: str
    arguments: Mapping[str, Any]  # by name: what JSON can hold


@dataclass(frozen=True)
class Unread:
    """A turn whose calls could not be read: the environment is not asked, the policy is told why."""

    why: str


Action = str | tuple[Call, ...] | Unread  # a turn of the policy's: its text where it calls no tool
