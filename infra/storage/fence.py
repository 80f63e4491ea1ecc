"""What keeps a writer of a run whom another has succeeded from writing: the epoch of its lock."""

import json
import re
from dataclasses import dataclass

from infra.storage import place

CLAIM = re.compile(r"\d{8}(-[0-9a-f]{16})?\.json")


class LockLostError(RuntimeError):
    """Another process has taken the run: what this one would write is refused."""


@dataclass(frozen=True)
class Fence:
    """A held run, as every writer of it gets it, on whatever machine."""

    run: str  # URI
    epoch: int
    name: str = ""  # of the claim, where a store cannot make one file an epoch

    @property
    def claim(self) -> str:
        """The URI of the claim."""
        return place.join(self.run, "lock", f"{self.epoch:08d}{'-' if self.name else ''}{self.name}.json")

    def check(self) -> None:
        """Raise LockLostError if another claim counts by now. One listing."""
        mine = self.claim.rpartition("/")[2]
        for name in claims(self.run):
            if name[:8] == mine[:8]:  # two may have thought that the epoch is theirs: it is the first name's
                counts = name < mine and _is_held(place.join(self.run, "lock", name))
            else:
                counts = name > mine
            if not counts:
                continue
            raise LockLostError(
                f"{self.run} was taken over by another process while this one gave no sign; what it had begun since is "
                "dropped, and the other goes on"
            )


def _is_held(claim: str) -> bool:
    try:
        return bool(json.loads(place.read(claim) or b"{}").get("state") == "held")
    except ValueError:
        return False


def claims(run: str) -> list[str]:
    """The names of all claims on a run, the newest epoch's last."""
    return [name for name in place.names(place.join(run, "lock")) if CLAIM.fullmatch(name)]
