"""Audits: another generator scores some leases again, at the version that sampled them; where the two disagree, the
trainer's worker says which of them is wrong."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.cluster.placement import Offer
from infra.dispatch.calls import DispatchError, PoisonedCallError, work_of
from infra.dispatch.dispatch import Dispatch
from infra.errors import one_line
from infra.storage.manifest import StoreError
from infra.weights.version import PolicyVersion
from rl.admission import refused_audit, refused_logprobs
from rl.audit import AuditConfig, Audited, AuditScores, compared, divergence, drawn, draws, who_is_wrong
from rl.graph import AUDIT
from rl.records import Maker, Rollouts
from tasks.batch.collection import Collection
from tasks.batch.lease import Lease, Slice
from tasks.calls.generator import Generator
from tasks.calls.scorer import Referee
from tasks.score import bare

AT_ONCE = 16  # audits under way, at most
CALL = "generate"  # auditors are where generators are: they have the weights


@dataclass(frozen=True)
class Audits:
    """What a run audits, and how."""

    config: AuditConfig
    generator: Generator
    referee: Referee
    version: Callable[[int], PolicyVersion]  # of the run, by its number
    newest: Callable[[int], PolicyVersion]  # of the run, from this number on
    _said: set[tuple[str, ...]] = field(default_factory=set)  # of which workers it was said, and what

    def possible(self, dispatch: Dispatch) -> bool:
        """Whether there are two generators: one that is alone has nobody to audit it."""
        return len(_auditors(dispatch)) > 1

    def due(self, dispatch: Dispatch, step: int, lease: Lease, slices: Sequence[Slice]) -> list[Slice]:
        """The slices of this lease that are audited: all by workers that were found wrong before; else one, by the
        lease's name alone, or none."""
        chance, _ = draws(self.generator.seed, step, lease.groups.start)
        watched = [one for one in slices if dispatch.exclusions.is_watched(one.by)]
        if not watched and slices and chance < self.config.share:
            return [slices[int(chance / self.config.share * len(slices))]]
        return watched

    def of(self, dispatch: Dispatch, collection: Collection, lease: Lease, rollouts: Rollouts, made: Slice) -> None:
        """Audit one slice of a lease: the tokens that its worker drew; and tell the collection what came of it."""
        if not drawn(rollouts, made.start, made.end).any():  # what was observed left no room
            collection.found_right(lease, made)
            return
        number, tokens = compared(rollouts, made.start, made.end)
        worker, maker = made.by, made.maker
        try:
            version = self.version(number)
        except StoreError:  # removed meanwhile
            collection.audited(Audited(maker))
            return
        if self.generator.inflight is not None and self.newest(number).step > number:
            collection.audited(Audited(maker))  # all others go on with that, and none goes back
            return
        _, place = draws(self.generator.seed, collection.step, lease.groups.start)
        found = self._scored(dispatch, version, rollouts, worker, place)
        if found is None:
            collection.audited(Audited(maker))
            return
        auditor, scored = found
        kl, allowed = divergence(rollouts.logprobs, scored.logprobs, tokens), self.config.allowed(int(tokens.sum()))
        wrong = ""
        if kl > allowed:
            said = f"a lease of step {collection.step + 1}: {kl:.3g} nats per token, {allowed:.3g} are allowed"
            wrong = self._wrong(dispatch, version, rollouts, tokens, (worker, auditor), scored, said)
            if wrong == "maker":
                collection.found_wrong(lease)
        else:
            self._agree(dispatch, collection, lease, made, auditor)
        collection.audited(Audited(maker, Maker(auditor.name, scored.dtype), kl, wrong))

    def _agree(self, dispatch: Dispatch, collection: Collection, lease: Lease, made: Slice, auditor: Offer) -> None:
        """Two workers agree. Of two that were found wrong before, that says nothing: what is wrong may be the same."""
        is_watched = dispatch.exclusions.is_watched
        if not is_watched(auditor):
            collection.found_right(lease, made)
            dispatch.exclusions.found_right(made.by)
        elif not is_watched(made.by):
            dispatch.exclusions.found_right(auditor)

    def _scored(
        self, dispatch: Dispatch, version: PolicyVersion, rollouts: Rollouts, maker: Offer, place: float
    ) -> tuple[Offer, AuditScores] | None:
        """What another generator makes of these rollouts: the first from this `place` among them on, before those that
        something is known against. One that has a later version by now is passed over, as is one that fails."""
        others = [offer for offer in _auditors(dispatch) if offer.address != maker.address]
        first = int(place * len(others))
        for auditor in sorted([*others[first:], *others[:first]], key=dispatch.exclusions.is_watched):
            seconds = dispatch.took.limit(work_of(self.generator.generate), dispatch.late_after)
            asked = version, bare(rollouts)
            try:
                score = self.generator.score
                found = dispatch.ask(CALL, score, *asked, worker=auditor, seconds=seconds, name=AUDIT.name)
            except DispatchError:
                raise
            except Exception as error:  # noqa: BLE001 - what it raised there: the run does not need it
                self._say(dispatch, f"{auditor.name} cannot audit: {one_line(error)}")
                continue
            if found is None:
                continue
            if why := refused_audit(found, rollouts):
                dispatch.exclusions.refuse(AUDIT.name, auditor, why)
                continue
            return auditor, found
        return None

    def _wrong(
        self,
        dispatch: Dispatch,
        version: PolicyVersion,
        rollouts: Rollouts,
        tokens: NDArray[np.bool_],
        parties: tuple[Offer, Offer],
        scored: AuditScores,
        said: str,
    ) -> str:
        """Which of maker and auditor is wrong, as `who_is_wrong` names them; counted against it."""
        names = " and ".join(party.name for party in parties)
        trainers = {offer.address for offer in dispatch.offers("train")}
        if trainers & {party.address for party in parties}:
            why = "one of them trains, so that no third can decide"
            self._say(dispatch, f"{names} disagree about {said}; {why}", names, why)
            return "undecided"
        try:
            third = dispatch.run("train", self.referee.score, version, bare(rollouts))
            if why := refused_logprobs(third, rollouts):
                raise ValueError(why)
        except Exception as error:  # what it raised there, or died of: the run does not need it
            if isinstance(error, DispatchError) and not isinstance(error, PoisonedCallError):
                raise
            why = f"the trainer's worker cannot decide: {one_line(error)}"
            self._say(dispatch, f"{names} disagree about {said}; {why}", names, why)
            return "undecided"
        of_maker = divergence(rollouts.logprobs, third, tokens)
        of_auditor = divergence(scored.logprobs, third, tokens)
        wrong = who_is_wrong(of_maker, of_auditor, self.config.allowed(int(tokens.sum())))
        apart = f"{of_maker:.3g} and {of_auditor:.3g} from the trainer's worker"
        if wrong == "undecided":
            why = f"they are {apart}, so that neither is known to be wrong"
            self._say(dispatch, f"{names} disagree about {said}; {why}", names)
        else:
            bad, good = parties if wrong == "maker" else parties[::-1]
            dispatch.exclusions.found_wrong(bad, f"{names} disagree about {said}; they are {apart}", good)
        return wrong

    def _say(self, dispatch: Dispatch, line: str, *of: str) -> None:
        """Once, of these workers and for this cause."""
        if (about := of or (line,)) not in self._said:
            self._said.add(about)
            dispatch.say(line)


def doubts(dispatch: Dispatch, audits: Audits | None) -> Callable[[Offer], bool]:
    """Whether what a worker has made counts only once an audit has found it right: it was found wrong before, and there
    is another one to make it."""
    is_watched = dispatch.exclusions.is_watched
    trusted = audits is not None and not all(map(is_watched, _auditors(dispatch)))
    return is_watched if trusted else lambda _: False


@task(name="audit", task_run_name="audit {collection.step}", cache_policy=NO_CACHE)
def audit(dispatch: Dispatch, collection: Collection, audits: Audits) -> None:
    """Audit the collection's leases as they come in, those that are due."""

    def of(lease: Lease, rollouts: Rollouts, made: Slice) -> None:
        try:
            audits.of(dispatch, collection, lease, rollouts, made)
        except BaseException:
            collection.abandon()
            raise

    with ThreadPoolExecutor(AT_ONCE, AUDIT.name) as threads:
        asked = [
            threads.submit(of, lease, rollouts, made)
            for lease, rollouts in collection.arrivals(AUDIT)
            for made in audits.due(dispatch, collection.step, lease, collection.slices(lease))
        ]
        for audited in as_completed(asked):
            audited.result()


def _auditors(dispatch: Dispatch) -> list[Offer]:
    """The workers that may be asked, by name."""
    excluded, silent = dispatch.exclusions.excluded, dispatch.silent
    there = [each for each in dispatch.offers(CALL) if not excluded(CALL, each) and each.address not in silent]
    return sorted(there, key=lambda offer: offer.name)
