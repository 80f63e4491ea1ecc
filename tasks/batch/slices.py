"""Leases in slices: what generators have handed in so far, and what goes on."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from infra.cluster.placement import Offer
from infra.dispatch.shares import Sizes
from infra.dispatch.speeds import Made
from infra.weights.version import PolicyVersion
from rl.admission import Asked, refusal
from rl.records import Rollouts
from rl.slices import SoFar, joined, over
from tasks.batch.lease import Lease, Slice
from tasks.calls.generator import Arguments, Generator


@dataclass(frozen=True)
class Slices:
    """The leases of one step that wait, or are being made. Its methods are called by one thread, but for `whole` and
    `go_on`, which are called for a lease that is done, or whose turn is."""

    generator: Generator
    step: int
    leases: list[Lease]  # more of them, where one is cut
    versions: range  # that a token may be of
    vocabulary: int | None
    newest: Callable[[int], PolicyVersion]  # from this step on
    cut_to: Sizes | None = None  # prompts and seconds of a lease; None: they stay as they are
    _made: dict[int, Rollouts] = field(default_factory=dict)  # so far, by the lease's index
    _slices: dict[int, tuple[Slice, ...]] = field(default_factory=dict)
    _observed: dict[int, tuple[tuple[str, ...], ...]] = field(default_factory=dict)  # and not drawn behind yet

    def sizes(self, index: int) -> Sizes | None:
        """What the lease is cut to; None where others have begun it."""
        return None if index in self._made else self.cut_to

    def units(self, index: int) -> int:
        """Prompts of the lease."""
        return len(self.leases[index].groups)

    def cut(self, index: int, units: int) -> int:
        """Leave the lease its first so many prompts; the index of a new one with the others."""
        assert index not in self._made
        self.leases[index], rest = self.leases[index].cut(units)
        self.leases.append(rest)
        return len(self.leases) - 1

    def made(self, _: int, returned: Rollouts) -> Made:
        """What a generator has drawn of a lease, and in how many steps."""
        return Made(int(returned.trained_lengths.max()), returned.generated_tokens)

    def arguments(self, index: int) -> Arguments:
        """Of the lease's next slice, with the newest version."""
        lease, so_far = self.leases[index], self._so_far(index)
        return self.newest(self._allowed(index).start), self.step, lease.groups, lease.problems, so_far

    def check(self, index: int, returned: Rollouts) -> str:
        """Why this is not what was asked for; empty if it is."""
        asked = Asked(
            self.leases[index].problems,
            self.generator.samples,
            self.generator.sampling.limit,
            self._published(self._allowed(index)),
            self.vocabulary,
            self._so_far(index),
            unfinished=self.generator.slice_seconds is not None,
            turns=self.generator.interface is not None,
        )
        return refusal(returned, asked)

    def take(self, index: int, returned: Rollouts, worker: Offer) -> bool:
        """Keep what this worker has made of the lease; whether that is done."""
        made, before = returned.typed().made_by(worker.name), self._made.get(index)
        start = np.zeros_like(made.lengths) if before is None else before.lengths
        found = made if before is None else joined(before, made)
        (maker, *_) = made.makers
        self._slices[index] = *self._slices.get(index, ()), Slice(worker, maker, start, found.lengths)
        self._made[index] = found
        self._observed.pop(index, None)
        return bool(over(found, self.generator.sampling.limit).all())

    def whole(self, index: int) -> tuple[Rollouts, tuple[Slice, ...]]:
        """A lease that is done, and who has made it."""
        return self._made.pop(index), self._slices.pop(index)

    def go_on(
        self, index: int, made: Rollouts, slices: tuple[Slice, ...], observed: tuple[tuple[str, ...], ...]
    ) -> None:
        """Another turn of a lease: of each completion [P * G] for which something was observed."""
        going_on = np.reshape([bool(texts) for texts in observed], made.ended.shape)
        none = tuple(("",) * len(row) for row in made.actions)  # of this turn
        self._observed[index], self._slices[index] = observed, slices
        self._made[index] = replace(made, ended=made.ended & ~going_on, actions=none, texts=none)

    def _published(self, versions: range) -> range:
        """Those that there are by now: a worker that says another would have others go on with that."""
        return range(versions.start, min(versions.stop, self.newest(versions.start).step + 1))

    def _so_far(self, index: int) -> SoFar | None:
        made = self._made.get(index)
        return None if made is None else SoFar.of(made, self.generator.sampling.limit, self._observed.get(index, ()))

    def _allowed(self, index: int) -> range:
        """The versions that the lease's next tokens may be of: none older than its tokens so far."""
        made = self._made.get(index)
        if made is None:
            return self.versions
        going_on = np.where(made.trained, made.versions, 0)[~over(made, self.generator.sampling.limit)]
        return range(max(self.versions.start, int(going_on.max())), self.versions.stop)
