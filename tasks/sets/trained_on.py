"""What a problem file gave to a training run: enough to tell later whether it is the same, and what was trained on."""

import json
from collections.abc import Iterable, Sequence, Set
from hashlib import sha256
from typing import Self

from pydantic import BaseModel, ConfigDict

from rl.problems.rows import asked, digest, normalized
from rl.records import Problem

SHORT = 8  # bytes of a prompt's digest: among a million prompts, two share theirs with a probability of 1e-7


class TrainedOn(BaseModel):
    """One problem set, as it was when a run began."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_bytes="base64", val_json_bytes="base64")

    rows: int
    digest: str  # of every prompt and target, in the order of a split
    trained: bytes  # short digests of the prompts that are trained on, normalized; not so in runs of older versions

    @classmethod
    def of(cls, split: tuple[Sequence[Problem], Sequence[Problem]], trained: Iterable[Problem]) -> Self:
        """Of a set's problems as (training, held-out), of the first of which ``trained`` are drawn."""
        sums = sha256()
        for side in split:
            sums.update(f"{len(side)}\n".encode())
            for problem in side:
                sums.update(json.dumps([problem.prompt, problem.target]).encode() + b"\n")
        prompts = sorted({short_digest(normalized(asked(problem))) for problem in trained})
        return cls(rows=sum(map(len, split)), digest=sums.hexdigest(), trained=b"".join(prompts))

    def same_files(self, other: Self | None) -> bool:
        """Whether both are of the same rows; the prompts trained on may differ, as another set may hold some out."""
        return other is not None and (self.rows, self.digest) == (other.rows, other.digest)

    def prompts(self) -> frozenset[bytes]:
        """The short digests of the prompts that are trained on."""
        return frozenset(self.trained[at : at + SHORT] for at in range(0, len(self.trained), SHORT))


def short_digest(prompt: str) -> bytes:
    """The digest by which a prompt is recognized."""
    return digest(prompt)[:SHORT]


def seen_among(problems: Iterable[Problem], trained: Set[bytes]) -> frozenset[str]:
    """The normalized prompts of these problems that are in ``trained``, the short digests of what was trained on; case
    and blanks do not count."""
    if not trained:
        return frozenset()
    return frozenset(
        normal
        for prompt in map(asked, problems)
        if not trained.isdisjoint({short_digest(normal := normalized(prompt)), short_digest(prompt)})
    )


def prompts_of(sets: Iterable[TrainedOn]) -> frozenset[bytes]:
    """The short digests of the prompts that are trained on, of all these sets."""
    return frozenset().union(*(each.prompts() for each in sets))
