"""The time of a step: the flow's by stage, and what the workers computed meanwhile."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from flows.report.run_pictures import BESIDE
from infra.cluster.placement import ALONE
from infra.cluster.timeline import Span

ACTOR = "train"  # the call that updates the policy
UPDATE = "update"  # the stage that waits for the updates

Interval = tuple[float, float]  # begin and end, seconds since 1970


class StepTime:
    """Of the step under way, in this process's clock."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)  # seconds by stage
        self._began = time.perf_counter()
        self._updating = self._began, self._began
        self._sampled: dict[str, float] = {}  # seconds of generators that no step has counted

    def begin(self) -> None:
        """The first step begins now."""
        self._began = time.perf_counter()

    def leave_out(self, seconds: float) -> None:
        """They have just passed and count towards no step."""
        self._began += seconds

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Count the time inside towards a stage."""
        began = time.perf_counter()
        try:
            yield
        finally:
            ended = time.perf_counter()
            self.spent[stage] += ended - began
            if stage == UPDATE:
                self._updating = began, ended

    def sampling(self, spans: Iterable[Span], seconds: float, there: Collection[str]) -> float:
        """The share of a step of so many seconds in which generators sampled, those that are `there` and those of whom
        a lease came back in it: the mean of them, by these leases. Of one that began before there may be more than the
        step; the next one counts the rest, while its generator is there."""
        everybody = set(there)
        for span in spans:
            if span.call == "generate" and not span.lost:
                everybody.add(span.worker)
                sampled = span.end - span.start - span.loading
                self._sampled[span.worker] = self._sampled.get(span.worker, 0.0) + sampled
        counted = {name: min(self._sampled.get(name, 0.0), seconds) for name in everybody}
        self._sampled = {name: self._sampled.get(name, 0.0) - counted[name] for name in there}
        return sum(counted.values()) / (seconds * max(1, len(everybody)))

    def end(self) -> "TimedStep":
        """The step is done: the next one begins now, with no time spent."""
        now = time.perf_counter()
        since = time.time() - now  # spans are in the calendar's time
        updating = self._updating[0] + since, self._updating[1] + since
        step = TimedStep((self._began + since, now + since), updating, dict(self.spent))
        self._began, self._updating = now, (now, now)
        self.spent.clear()
        return step


@dataclass(frozen=True)
class TimedStep:
    """A step that is done."""

    whole: Interval
    updating: Interval  # the part of it that waited for the updates
    spent: Mapping[str, float]  # seconds by stage

    @property
    def seconds(self) -> float:
        return self.whole[1] - self.whole[0]

    def figures(self, spans: Sequence[Span]) -> dict[str, float]:
        """The metrics of its time, given the calls that came back in it. The worker of an update is busy with whatever
        it computes: with a critic's update and with scores too. Updates may run by turns or side by side."""
        actors = {span.worker for span in spans if span.call == ACTOR}
        updating = {span.worker for span in spans if span.call in ALONE}
        busy = computing((span for span in spans if span.worker in actors), self.whole)
        worked = computing((span for span in spans if span.worker in updating), self.updating)
        # without the machines' work, the step would have taken this share of its time
        idle = max(0.0, self.seconds - self.spent.get("rollouts", 0.0) - worked)
        return {
            "perf/step_seconds": self.seconds,
            "perf/trainer_busy": busy / self.seconds,
            "perf/overhead_fraction": idle / self.seconds,
            **{f"perf/{stage}_seconds": spent for stage, spent in self.spent.items()},
        }


def computing(spans: Iterable[Span], within: Interval) -> float:
    """Seconds of the interval in which at least one of these calls was computed. Waiting for weights is no computation,
    nor is what died with its worker; what runs beside other calls is not counted."""
    counted = (span for span in spans if span.call not in BESIDE and not span.lost)
    seconds, reached = 0.0, within[0]
    for began, ended in sorted((span.start + span.loading, span.end) for span in counted):
        began, ended = max(began, reached), min(ended, within[1])
        if ended > began:
            seconds, reached = seconds + ended - began, ended
    return seconds


def weights_read(spans: Sequence[Span]) -> dict[str, float]:
    """The metrics of what generators have fetched in these calls, and how long they waited."""
    fetched = defaultdict[str, float](float)
    for span in spans:
        if span.call in ("generate", "evaluate"):
            for at in ("", f"{span.worker}/"):
                fetched[f"sync/{at}fetched_bytes"] += span.fetched
                fetched[f"sync/{at}load_seconds"] += span.loading
                fetched[f"sync/{at}download_seconds"] += span.downloading
                fetched[f"sync/{at}apply_seconds"] += span.applying
    return dict(fetched)
