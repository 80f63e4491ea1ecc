"""What a run has measured of each call: from its timeline and metrics.

Of the last session, from its first lease to its last update: a model's check, export and evaluation are no part of a
step. The first call of each worker is left out of what a call takes: it imports, loads and compiles; and so are waits
for weights and for a core, which other calls and programs cause.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import isfinite
from statistics import mean, median

from flows.planner.contention import Machine, load, own_seconds, wanted
from flows.planner.sizes import Timed, fixed_tokens
from infra.cluster.timeline import Span
from infra.planning.costs import Costs, Work
from infra.runs.record import Record

FEWEST = 3  # steps that figures are taken from
GONE = 2  # times the longest time between two leases, without one: that generator has left
NEWEST = 100  # leases of a worker that tell what size does


class NothingMeasuredError(ValueError):
    """A run whose timeline says nothing of its steps."""


@dataclass(frozen=True)
class MeasuredCall:
    """One call on one worker."""

    seconds: float  # of its leases, or of one batch, without waits for weights and cores: the mean
    computing: float  # cores that it used in them
    count: int  # of its leases
    tokens: float  # of a lease: the mean; of all workers' leases where its own say nothing; 1 where none do
    timed: tuple[Timed, ...]  # its newest leases


@dataclass(frozen=True)
class MeasuredStep:
    """A step as it was, in the mean."""

    seconds: float  # wall time: the median, but for the first, which loads, and the last, beside which nothing is begun
    steps: int  # that the spans cover
    calls: Mapping[str, Mapping[str, MeasuredCall]]  # by call and worker
    waiting: Mapping[str, Mapping[str, float]]  # seconds a step that a call waited for weights, by worker
    delayed: Mapping[str, float]  # seconds a step that a call waited for a core, on all workers
    leases: Mapping[str, float]  # a step, without those that were dropped
    tokens: Mapping[str, float]  # a step, of these leases; their number where they say nothing
    handing_over: float  # seconds from a publication's begin to the first call with its version: bookkeeping beside it
    logging: float  # seconds from there to the next update: bookkeeping
    training: float  # share of the step in which the worker of the updates computes: the median
    busy: Mapping[str, float]  # seconds of each worker a step, its waits for weights included, those for cores not
    machine: Mapping[str, str]  # of each worker, where it is known
    cores: Mapping[str, float]  # of each machine
    others: Mapping[str, float]  # cores of each machine that other programs wanted
    computed: Mapping[str, float]  # seconds of cores a step, by machine

    def taken(self, call: str) -> float:
        """Seconds of all workers a step."""
        return sum(one.count * one.seconds for one in self.calls.get(call, {}).values()) / self.steps

    @property
    def sized(self) -> bool:
        """Whether leases of generation say how large they are: versions that cut none to size did not."""
        return any(one.tokens for each in self.calls.get("generate", {}).values() for one in each.timed)

    def waited(self, call: str) -> float:
        """Seconds of all workers a step in which the call waited for weights."""
        return sum(self.waiting.get(call, {}).values())

    def place(self, call: str) -> tuple[str, ...]:
        """The workers that had it."""
        return tuple(sorted(self.calls.get(call, {})))


FIGURES = ("perf/step_seconds", "perf/log_seconds", "perf/trainer_busy")  # of a step, that are read


def measured_step(record: Record, uri: str, last: int | None = None) -> MeasuredStep:
    """The step of a run's last session, or of so many of its `last` steps.

    Raises:
        NothingMeasuredError: it has no timeline, or fewer than FEWEST steps.
    """
    if not record.sessions:
        raise NothingMeasuredError(
            f"{uri} has no timeline, so nothing is known of its calls; name a run that has trained"
        )
    figures = {name: list(record.curve(name).values()) for name in FIGURES}
    return step_of(record.sessions[-1], figures, machines_of(record.about.get("machines", {})), uri, last)


def step_of(
    session: Sequence[Span],
    figures: Mapping[str, Sequence[float]],
    machines: Mapping[str, Machine],
    uri: str,
    last: int | None = None,
) -> MeasuredStep:
    """The step of these spans and of FIGURES, a value a step; of the `last` ones, those since a generator joined or
    left. Raises as `measured_step`."""
    spans = _of_steps(session) if last is None else _last(_since_change(_of_steps(session)), last)
    steps = sum(span.call == "train" for span in spans)
    known = {name: [each for each in figures.get(name, ()) if isfinite(each)][-steps:] for name in FIGURES}
    seconds = known["perf/step_seconds"]
    if steps < FEWEST or len(seconds) < FEWEST:
        raise NothingMeasuredError(
            f"{uri} has {min(steps, len(seconds))} steps in its timeline, and figures need {FEWEST}; train it on with "
            "--steps"
        )
    by_pair: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        by_pair[span.call, span.worker].append(span)
    needed: dict[str, list[Span]] = defaultdict(list)  # by call: of a lease that two workers had done, the first
    for span in spans:
        if not span.dropped:
            needed[span.call].append(span)
    calls: dict[str, dict[str, MeasuredCall]] = defaultdict(dict)
    waiting: dict[str, dict[str, float]] = defaultdict(dict)
    delayed: dict[str, float] = defaultdict(float)
    busy: dict[str, float] = defaultdict(float)
    computed: dict[str, float] = defaultdict(float)
    for (call, worker), each in sorted(by_pair.items()):
        warm = each[1:] or each
        wants = min(wanted(warm), machines[worker].cores) if worker in machines else wanted(warm)
        working = max(mean(map(own_seconds, warm)), mean(span.computing for span in warm) / wants)
        size = _size(warm) or _size(needed[call]) or 1.0
        timed = tuple(Timed(span.tokens, own_seconds(span)) for span in warm[-NEWEST:])
        calls[call][worker] = MeasuredCall(working, wants, len(each), size, timed)
        waiting[call][worker] = mean(span.loading for span in warm) * len(each) / steps
        delayed[call] += mean(span.delayed for span in warm) * len(each) / steps
        if call != "publish":  # it runs beside other work
            taken = working * len(each) / steps
            busy[worker] += taken + waiting[call][worker]
            if worker in machines:
                computed[machines[worker].name] += wants * taken
    published = [span.end - span.start for span in spans if span.call == "publish"]
    publishing = median(published) if published else 0.0
    logging = median(known["perf/log_seconds"] or [0.0])
    return MeasuredStep(
        seconds=median(seconds[1:-1]),
        steps=steps,
        calls={call: dict(by) for call, by in calls.items()},
        waiting=dict(waiting),
        delayed=dict(delayed),
        leases={call: len(each) / steps for call, each in needed.items()},
        tokens={call: (_size(each) or 1.0) * len(each) / steps for call, each in needed.items()},
        handing_over=max(publishing, logging),
        logging=logging,
        training=median(known["perf/trainer_busy"] or [0.0]),
        busy=dict(busy),
        machine={worker: at.name for worker, at in machines.items()},
        cores={at.name: at.cores for at in machines.values()},
        others=_load(spans, machines),
        computed=dict(computed),
    )


def _size(spans: Sequence[Span]) -> float:
    """Tokens of one: the mean, of those that say it."""
    return mean([span.tokens for span in spans if span.tokens] or [0])


def _load(spans: Sequence[Span], machines: Mapping[str, Machine]) -> dict[str, float]:
    """The cores that other programs wanted of each machine in the steps that `seconds` is of."""
    ends = [span.end for span in spans if span.call == "train"]
    inside = [span for span in spans if span.call != "publish" and ends[0] <= span.end < ends[-2]]
    return load(inside, machines)


def machines_of(said: Mapping[str, tuple[str, int]]) -> dict[str, Machine]:
    """The machine of each worker that said which it is, and its cores."""
    return {worker: Machine(name, cores) for worker, (name, cores) in said.items() if name and cores > 0}


def _of_steps(spans: Sequence[Span]) -> list[Span]:
    """Those that came back between the first lease of a batch and the last publication, oldest first."""
    began = min((span.start for span in spans if span.call == "generate"), default=float("inf"))
    ended = max((span.start for span in spans if span.call == "publish"), default=0.0)
    evaluations = [span for span in spans if span.call == "evaluate"]
    found = [
        span
        for span in spans
        if began <= span.start <= ended and not span.lost and span.call != "evaluate" and not _judges(span, evaluations)
    ]
    return sorted(found, key=lambda span: span.start)


def _last(spans: Sequence[Span], steps: int) -> Sequence[Span]:
    """Those that began after the update before so many of the last ones; all where there are no more."""
    ends = [span.end for span in spans if span.call == "train"]
    return spans if len(ends) <= steps else [span for span in spans if span.start >= ends[-steps - 1]]


def _since_change(spans: Sequence[Span]) -> Sequence[Span]:
    """Those that began after the first update since a generator joined, but for the first step, or left."""
    ends = [span.end for span in spans if span.call == "train"]
    by: dict[str, list[Span]] = defaultdict(list)
    for span in spans:
        if span.call == "generate":
            by[span.worker].append(span)
    if len(ends) < FEWEST:
        return spans
    since = 0.0
    for each in by.values():
        back = sorted(span.end for span in each)
        longest = max((later - earlier for earlier, later in pairwise(back)), default=0.0)
        if each[0].start > ends[0]:
            since = max(since, each[0].start)
        if ends[-1] - back[-1] > max(ends[-1] - ends[-FEWEST], GONE * longest):
            since = max(since, back[-1])
    begin = next((end for end in ends if end >= since), 0.0) if since else 0.0
    return [span for span in spans if span.start >= begin]


def _judges(span: Span, evaluations: Iterable[Span]) -> bool:
    """Whether a verifier's call is of an evaluation: it begins when one has just come back."""
    return span.call == "verify" and any(0 <= span.start - one.end < 0.05 for one in evaluations)


def costs_of(
    calls: Iterable[Work],
    step: MeasuredStep,
    *,
    memory: Mapping[str, float],
    size: Mapping[str, float],
    others: Iterable[MeasuredStep] = (),
    cut: bool = False,
) -> Costs:
    """The costs of the calls on the workers that were measured: by this run, and by `others` of as many problems a
    step, such as probes. `memory`: bytes by worker; `size`: bytes by what is held; `cut`: leases are to what suits each
    worker, where their spans say how large they were.

    Raises:
        NothingMeasuredError: one of the calls was not made.
    """
    works: list[Work] = []
    fetching: dict[tuple[str, str], list[float]] = defaultdict(list)
    runs = (*others, step)
    for call in calls:
        found: dict[str, list[tuple[MeasuredStep, MeasuredCall]]] = defaultdict(list)
        for one in runs:
            for worker, each in one.calls.get(call.name, {}).items():
                found[worker].append((one, each))
            for worker, waited in one.waiting.get(call.name, {}).items():
                if call.model is not None and not call.trains:
                    fetching[call.model, worker].append(waited)
        if not found:
            raise NothingMeasuredError(f"the run made no call {call.name}, so there is nothing to plan with")
        warm = {worker: _warm(by) for worker, by in found.items()}
        fixed = fixed_tokens({worker: [t for _, each in by for t in each.timed] for worker, by in warm.items()})
        rates = {
            worker: [(one, each.seconds / (fixed[worker] + each.tokens)) for one, each in by]
            for worker, by in warm.items()
        }
        works.append(
            replace(
                call,
                seconds={w: median(rate * one.tokens[call.name] for one, rate in by) for w, by in rates.items()},
                fixed={w: fixed[w] * median(rate for _, rate in by) for w, by in rates.items() if fixed[w]},
                computing={w: median(each.computing for _, each in by) for w, by in warm.items()},
            )
        )
    wanted_by_others: dict[str, list[float]] = defaultdict(list)
    for one in runs:
        for name, cores in one.others.items():
            wanted_by_others[name].append(cores)
    return Costs(
        tuple(works),
        max(1, round(step.leases["generate"])),
        size,
        memory,
        {pair: max(waited) for pair, waited in fetching.items()},
        {worker: name for one in runs for worker, name in one.machine.items()},
        {name: cores for one in runs for name, cores in one.cores.items()},
        {name: median(each) for name, each in wanted_by_others.items()},
        median(one.handing_over for one in runs),
        median(one.logging for one in runs),
        cut=cut and step.sized,
    )


def _warm(found: Sequence[tuple[MeasuredStep, MeasuredCall]]) -> Sequence[tuple[MeasuredStep, MeasuredCall]]:
    """Those of more than the first call of a worker, if there are any."""
    return [(one, each) for one, each in found if each.count > 1] or found


def present_places(calls: Iterable[Work], step: MeasuredStep) -> dict[str, tuple[str, ...]]:
    """The workers of each call, as it was. Of a call for the whole batch, the one that had it most."""
    found = {}
    for call in calls:
        by = step.calls[call.name]
        most = max(sorted(by), key=lambda worker: by[worker].count)
        found[call.name] = (most,) if call.each == "batch" else step.place(call.name)
    return found
