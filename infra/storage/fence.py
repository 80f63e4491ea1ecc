"""The fence of a run's writers: one that another process has succeeded is refused, by the lock's epoch and claim."""

from dataclasses import dataclass

from infra.storage import place
from infra.storage.claim import claims, read_claim


class LockLostError(RuntimeError):
    """Another process has taken the run, or somebody has removed it: what this one would write is refused."""


@dataclass(frozen=True)
class Fence:
    """A held run, as each of its writers has it, on whatever machine."""

    run: str  # URI
    epoch: int
    name: str = ""  # of the claim, where a store cannot make one file an epoch
    mark: str = ""  # in the claim: where the run was removed and begun anew, another's claim has the same epoch

    @property
    def claim(self) -> str:
        """The URI of the claim."""
        return place.join(self.run, "lock", f"{self.epoch:08d}{'-' if self.name else ''}{self.name}.json")

    def check(self) -> None:
        """Raise LockLostError where another claim holds the run, or its own is gone. One listing, one small file."""
        mine = self.claim.rpartition("/")[2]
        there = claims(self.run)
        if any(name[:8] > mine[:8] for name in there):
            raise LockLostError(self._taken_over())
        content = place.read(self.claim)
        if content is None:
            raise LockLostError(
                f"{self.run} was removed while this process trained it, or its disk is no longer there; nothing more "
                "is written there"
            )
        claim = read_claim(content)
        # a claim under a name of its own cannot be another's; it may be half written where a store writes in place
        if not self.name and (claim is None or claim.mark != self.mark):
            raise LockLostError(
                f"{self.run} was removed while this process trained it, and another has begun it anew; nothing more "
                "is written there"
            )
        # two processes may have claimed the epoch: the first name holds it
        rivals = (name for name in there if name[:8] == mine[:8] and name < mine)
        if any(_is_held(place.join(self.run, "lock", name)) for name in rivals):
            raise LockLostError(self._taken_over())

    def _taken_over(self) -> str:
        return (
            f"{self.run} was taken over by another process while this one gave no sign; what it had begun since is "
            "dropped, and the other goes on"
        )


def _is_held(claim: str) -> bool:
    found = read_claim(place.read(claim) or b"")
    return found is not None and found.state == "held"
