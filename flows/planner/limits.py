"""What limits a run, in a sentence: what its trainer waited, as measured, and what would shorten its steps most, as
simulated from what each call took. A run whose steps its calls do not explain gets no advice."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.config import MAX_STALENESS
from flows.planner.calls import graph_of_settings, planned_calls
from flows.planner.contention import Machine
from flows.planner.measured import MeasuredStep, NothingMeasuredError, costs_of, measured_step, present_places, step_of
from flows.planner.proposal import load_in_words
from infra.cluster.timeline import Span
from infra.planning.costs import Costs, Places, listed
from infra.planning.limits import Change, Limits, find_limits
from infra.runs.record import Record
from rl.graph import Graph

STEPS = 6  # fewest that anything is said of: the first ones load and compile
LAST = 50  # steps that it is taken from
MOST_WORKERS = 8  # of a call: simulating more takes many seconds
WORTH = 1.1  # times shorter that a step has to get by a change
MISFIT = 0.25  # share of the step by which it may be off what its calls explain
WAITS = 0.03  # share of its time that a trainer waits and is busy all the same
RUN = "this run"
PLACED = {"generate": ("generator", "rollouts"), "verify": ("verifier", "verdicts")}  # who, and what is waited for


@dataclass(frozen=True)
class Limit:
    """Of a run's last steps."""

    step: MeasuredStep
    found: Limits
    places: Places
    costs: Costs
    staleness: int

    @property
    def explained(self) -> bool:
        """Whether simulated steps are like those that were."""
        return abs(self.found.seconds / self.step.seconds - 1) <= MISFIT

    @property
    def best(self) -> Change | None:
        """The change that would shorten a step most; None where none is worth it."""
        return next((change for change in self.found.changes if change.gain >= WORTH), None)

    def words(self) -> str:
        """The sentence."""
        idle = max(0.0, 1 - self.step.training)
        waits = f"the trainer waits {idle:.0%} of the time"
        if not self.explained:
            load = "; ".join(load_in_words(self.costs))
            why = f"{load}: a" if load else "why is not known: a"
            return (
                f"{waits}; {why} step took {self.step.seconds:.2g} s, and its calls explain {self.found.seconds:.2g} s"
            )
        best = self.best
        if best is None:
            return f"no part limits the run by itself: {waits}, and no single change would make steps 10% faster"
        if best.kind == "worker":
            return f"{self._without(best, waits)}; {self._more(best)} would make {_faster(best)}{self._enough(best)}"
        if best.kind == "trainer":
            return self._trains(best)
        if best.kind == "link":
            return f"{self._weights(waits)}; a connection twice as fast would make {_faster(best)}{self._deeper()}"
        return self._early(best, waits)

    def _without(self, best: Change, waits: str) -> str:
        (trainer,), who = self.places["train"], best.worker
        if trainer in self.places["generate"]:
            busy = self.step.calls["train"][trainer].seconds / self.step.seconds
            return f"{trainer} generates and trains by turns, and updates take {busy:.0%} of the time"
        return f"{waits} for {PLACED[best.call][1] if best.call in PLACED else f'the calls {best.call} of {who}'}"

    def _more(self, best: Change) -> str:
        """The worker that is missing."""
        role = PLACED[best.call][0] if best.call in PLACED else "worker"
        machine = self.costs.machine.get(best.worker, "")
        shared = len(self.costs.sharing(machine)) > 1 if machine else False
        return f"one more {role} like {best.worker}{' on a machine of its own' if shared else ''}"

    def _enough(self, best: Change) -> str:
        if best.call != "generate" or self.found.more <= 1:
            return ""
        return f", {self.found.more} would keep the trainer busy"

    def _trains(self, best: Change) -> str:
        critic = best.call != "train"
        share = self.step.busy.get(best.worker, 0.0) / self.step.seconds if critic else self.step.training
        what = "the critic's trainer" if critic else "the trainer"
        name = "" if best.worker == "trainer" else f" ({best.worker})"
        fewest, present = self.found.fewest, self.places["generate"]
        spare = f"; of {len(present)} generators {listed(fewest)} would do" if 0 < len(fewest) < len(present) else ""
        return f"{what}{name} is busy {share:.0%} of the time; one twice as fast would make {_faster(best)}{spare}"

    def _weights(self, waits: str) -> str:
        """What is waited for is on its way."""
        every = self.places["generate"]
        share = sum(self.step.waiting.get("generate", {}).values()) / len(every) / self.step.seconds
        return f"generators wait {share:.0%} of the time for weights" if share > WAITS else f"{waits} for weights"

    def _deeper(self) -> str:
        change = next(one for one in self.found.changes if one.kind == "staleness")
        return f", staleness {self.staleness + 1} {_times(change)}" if change.gain >= WORTH else ""

    def _early(self, best: Change, waits: str) -> str:
        later = f"staleness {self.staleness + 1} would make {_faster(best)}"
        other = next((one for one in self.found.changes if one.kind == "worker" and one.gain >= WORTH), None)
        also = "" if other is None else f", {self._more(other)} {_times(other)}"
        if self.staleness == 0:
            return f"generation and training take turns (staleness 0), and {waits}; {later}{also}"
        return f"{waits} for batches that may begin no earlier (staleness {self.staleness}); {later}{also}"


def limit_of(graph: Graph, step: MeasuredStep, staleness: int, *, cut: bool) -> Limit | None:
    """What limits steps like this one; None where they are too few, the workers too many, or the graph not theirs.
    `cut`: leases are as large as suits each worker."""
    if step.steps < STEPS or not (step.seconds > 0 and step.taken("generate") > 0 and step.taken("train") > 0):
        return None
    calls = planned_calls(graph)
    try:
        costs = costs_of(calls, step, memory={}, size={}, cut=cut)
    except NothingMeasuredError:
        return None
    places = present_places(calls, step)
    if max(map(len, places.values())) > MOST_WORKERS:
        return None
    return Limit(step, find_limits(costs, places, staleness), places, costs, staleness)


def limit_of_steps(
    graph: Graph,
    staleness: int,
    spans: Sequence[Span],
    figures: Mapping[str, Sequence[float]],
    machines: Mapping[str, Machine],
    *,
    cut: bool,
) -> Limit | None:
    """What limits the last of these steps, see `step_of`; None where they say too little."""
    try:
        return limit_of(graph, step_of(spans, figures, machines, RUN, LAST), staleness, cut=cut)
    except NothingMeasuredError:
        return None


def limit_of_record(record: Record, config: Mapping[str, Any]) -> Limit | None:
    """What limited the last steps of a run; `config`: its settings as they are read, whatever they hold."""
    staleness = config.get("staleness", 1)
    if not isinstance(staleness, int) or not 0 <= staleness <= MAX_STALENESS:
        return None
    try:
        step = measured_step(record, RUN, LAST)
    except NothingMeasuredError:
        return None
    lease = config.get("lease")
    cut = isinstance(lease, dict) and bool(lease.get("seconds"))  # runs from before there was `lease.seconds` are not
    return limit_of(graph_of_settings(config, step.calls), step, staleness, cut=cut)


def _times(change: Change) -> str:
    return f"{change.gain:.2g} times"


def _faster(change: Change) -> str:
    return f"steps {_times(change)} faster"
