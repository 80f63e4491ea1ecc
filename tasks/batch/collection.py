"""One step's batch in the making: the generate task puts leases in, the tasks of verification and scores take them out.

The first leases hold the step's prompts; as soon as verdicts make it certain that too few groups have rewards that
differ, replacements are generated, up to a bound (`tasks.batch.refills`). What is generated depends on the verdicts
alone, never on when they came, so the same policy makes the same batch on any cluster. Leases of a worker that was
found wrong are made again by others once all else is done: the same problems, with the same noise.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from threading import Condition
from typing import Any

import numpy as np
from numpy.typing import NDArray

from infra.cluster.placement import Offer
from infra.security.printable import printable
from rl.audit import Audited
from rl.environments.episode import Episode
from rl.graph import VERIFY, Call
from rl.judging import BrokenVerifierError, Judgement
from rl.records import Batch, Problem, Rollouts, concatenate
from tasks.batch.batch_config import BatchConfig
from tasks.batch.lease import Lease, Slice
from tasks.batch.refills import Refills
from tasks.batch.rollout_batch import RolloutBatch
from tasks.sets.problem_set import ProblemSet


@dataclass
class _Made:
    """A lease that came back."""

    lease: Lease
    slices: tuple[Slice, ...]  # who has made it
    episodes: tuple[Episode, ...]
    judged: tuple[Batch, Judgement] | None = None  # without scores
    scores: dict[str, Any] = field(default_factory=dict)  # [P, G, T] each, by field of Batch
    is_wrong: bool = False  # an audit has found so
    right: set[int] = field(default_factory=set)  # places of slices that audits agree with

    def is_in_doubt(self, distrusted: Callable[[Offer], bool], doubted: Callable[[Offer], bool]) -> bool:
        return self.is_wrong or any(
            distrusted(one.by) or (doubted(one.by) and at not in self.right) for at, one in enumerate(self.slices)
        )


class Collection:
    """See the module's docstring. One thread runs :meth:`draws`, another one each call's :meth:`arrivals`."""

    def __init__(
        self,
        step: int,
        problems: ProblemSet,
        config: BatchConfig,
        scores: Iterable[Call] = (),
        *,
        every_group: bool = False,
    ) -> None:
        """`scores`: the calls that are made of each lease beside its verification; ``every_group``: groups whose
        rewards are all equal teach something too."""
        self.step = step
        self.config = config
        self._every_group = every_group
        self.refused = 0  # leases, see RolloutBatch
        self.problems = problems
        self._drawn: list[Problem] = []  # of the step, in order: those of leases, and some that may become one
        self._rounds = Refills(config.prompts, int(config.prompts * config.oversample), config.lease)
        self._made: dict[int, _Made] = {}  # by the first group of the lease
        self._again: list[range] = []  # the groups of leases to be made again
        self._others: dict[int, frozenset[str]] = {}  # by the same: addresses of whom it is to be made again without
        self._audits: list[Audited] = []
        self._redrawn = 0  # groups
        self._calls = VERIFY, *scores
        self._arrived = self._queues()
        self._changed = Condition()
        self._abandoned = False

    def _queues(self) -> dict[str, SimpleQueue[tuple[Lease, Rollouts] | None]]:
        return {call.name: SimpleQueue() for call in self._calls}

    def makes(self, call: Call) -> bool:
        """Whether this call is made of its leases."""
        return call.name in self._arrived

    def draws(self) -> Iterator[list[Lease]]:
        """The leases to generate, as soon as each is certain to be needed; ends when all are judged."""
        try:
            while groups := self._next():
                yield [Lease(each, self._problems_of(each)) for each in groups]
        finally:
            self._arrives(None)

    def _next(self) -> list[range]:
        """The groups of each lease to generate, once there are any; nothing where no more are needed."""
        with self._changed:
            while not self._abandoned:
                if self._again:
                    again, self._again = self._again, []
                    return again
                broken = all(made.judged[1].broken for made in self._made.values() if made.judged is not None)
                if generated := self._rounds.draw(broken=broken):
                    return generated
                if self._rounds.all_judged:
                    break
                self._changed.wait()
        return []

    def _problems_of(self, groups: range) -> tuple[Problem, ...]:
        """Draws ahead of them: many small draws take long where problems are made in code."""
        if groups.stop > (there := len(self._drawn)):
            further = min(2 * there, self._rounds.bound)
            self._drawn += self.problems.draw(self.step, max(groups.stop, further) - there, there)
        return tuple(self._drawn[groups.start : groups.stop])

    def arrive(
        self, lease: Lease, rollouts: Rollouts, slices: tuple[Slice, ...] = (), episodes: tuple[Episode, ...] = ()
    ) -> None:
        """A lease is done, in these slices, with its episodes [P * G] where an environment is acted on."""
        with self._changed:
            self._made[lease.groups.start] = _Made(lease, slices, episodes)
        self._arrives((lease, rollouts))

    def _arrives(self, arrived: tuple[Lease, Rollouts] | None) -> None:
        for queue in self._arrived.values():
            queue.put(arrived)

    def arrivals(self, call: Call = VERIFY) -> Iterator[tuple[Lease, Rollouts]]:
        """Leases to judge, or to make another `call` of, as they come in."""
        while (arrived := self._arrived[call.name].get()) is not None:
            yield arrived

    def judged(self, lease: Lease, rollouts: Rollouts, judgement: Judgement) -> None:
        """The verdicts on a lease are in."""
        with self._changed:
            batch = Batch(rollouts, judgement.rewards, judgement.reasons)
            self._of(lease).judged = batch, judgement
            self._rounds.judged(lease.groups.start, self._teaching(batch))
            self._changed.notify_all()

    def scored(self, lease: Lease, call: Call, scores: NDArray[np.float32]) -> None:
        """What a call has made of a lease: the field of `Batch` that it writes."""
        (written,) = call.writes
        with self._changed:
            self._of(lease).scores[written] = scores

    def episodes(self, lease: Lease) -> tuple[Episode, ...]:
        """Those of this lease; () where no environment is acted on."""
        return self._of(lease).episodes

    def slices(self, lease: Lease) -> tuple[Slice, ...]:
        """Who has made this lease, one after the other; () where nobody has said."""
        return self._of(lease).slices

    def audited(self, audited: Audited) -> None:
        """The audit of a lease is done."""
        with self._changed:
            self._audits.append(audited)

    def found_wrong(self, lease: Lease) -> None:
        """An audit has found that this lease is not what its version samples."""
        with self._changed:
            self._of(lease).is_wrong = True

    def found_right(self, lease: Lease, made: Slice) -> None:
        """An audit agrees with this slice of the lease."""
        with self._changed:
            self._of(lease).right |= {at for at, one in enumerate(self.slices(lease)) if one is made}

    def without(self, lease: Lease) -> frozenset[str]:
        """The addresses of workers that do not make this lease while there are others: what they made was not right."""
        return self._others.get(lease.groups.start, frozenset())

    def reopen(self, distrusted: Callable[[Offer], bool], doubted: Callable[[Offer], bool] = lambda _: False) -> bool:
        """Have all leases made again that audits have found wrong, or of which one who has made them is `distrusted` by
        now, or `doubted` and not found right by an audit of it; whether there are any. Rounds that followed from their
        verdicts are drawn anew. To be asked when no call is under way: then all of them begin anew."""
        again = {start for start, made in self._made.items() if made.is_in_doubt(distrusted, doubted)}
        if not again:
            return False
        end = self._rounds.reopen(again)
        for start in again:
            makers = {one.by.address for one in self._made[start].slices}
            self._others[start] = self._others.get(start, frozenset()) | makers
        self._again = [self._made[start].lease.groups for start in sorted(again) if start < end]
        for start in [start for start in self._made if start in again or start >= end]:
            self._redrawn += len(self._made.pop(start).lease.groups)
        self._abandoned, self._arrived = False, self._queues()
        return True

    def refuse(self, *_: object) -> None:
        """Count a lease that came back as what was not asked for."""
        with self._changed:
            self.refused += 1

    def abandon(self) -> None:
        """No verdicts will come any more, or not all scores: let the generating side end, and who waits for leases."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()
        self._arrives(None)

    def _teaching(self, batch: Batch) -> NDArray[np.bool_]:
        """[P]: groups that an update learns from."""
        return batch.teaching(every_group=self._every_group)

    def _of(self, lease: Lease) -> _Made:
        return self._made[lease.groups.start]

    def _judged(self) -> list[tuple[_Made, Batch, Judgement]]:
        """Of each lease that is judged, in order of admission."""
        return [(made, *made.judged) for _, made in sorted(self._made.items()) if made.judged is not None]

    def judgement(self) -> Judgement | None:
        """All verdicts, in order of admission; None where nothing arrived.

        Raises:
            BrokenVerifierError: every completion failed in its verifier.
        """
        if not (judged := self._judged()):
            return None
        judgement = Judgement.join([each for *_, each in judged])
        if judgement.broken:
            why = printable(judgement.errors[0])  # Prefect's own commands print what ends a run as it is
            raise BrokenVerifierError(f"no completion of step {self.step + 1} could be judged: {why}")
        return judgement

    def collected(self) -> RolloutBatch:
        """The finished batch, once all calls are made: the first groups that teach something, in order of
        admission. Raises as `judgement`."""
        judgement, judged = self.judgement(), self._judged()
        assert judgement is not None
        everything = concatenate([replace(batch, **made.scores) for made, batch, _ in judged])
        used = [int(group) for group in self._teaching(everything).nonzero()[0][: self.config.prompts]]
        return replace(
            RolloutBatch.of(everything, judgement, used),
            refused=self.refused,
            redrawn=self._redrawn,
            audits=tuple(self._audits),
            mixed=self.problems.mixed,
            made=tuple(made.slices for made in self._made.values()),
            episodes=tuple(made.episodes for made, *_ in judged),
        )
