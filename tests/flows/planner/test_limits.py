"""What is said to limit a run, from timelines of which a person knows what does."""

import re
from dataclasses import dataclass, replace

import pytest

from flows.planner.calls import graph_named
from flows.planner.contention import Machine
from flows.planner.limits import MOST_WORKERS, STEPS, Limit, limit_of_record, limit_of_steps
from infra.cluster.timeline import Span
from infra.runs.metric_log import MetricLine
from infra.runs.record import Record

GRAPH = graph_named("grpo", kl=False)
BEGAN = 1_790_000_000.0
NEAR = 0.15  # share by which what is said may be off


@dataclass(frozen=True)
class Lived:
    """A run whose steps take `seconds`: leases of each generator, of so many seconds; what the rest of a step takes."""

    seconds: float
    generate: dict[str, tuple[int, float]]
    verify: float = 0.01  # of each lease
    reward: float = 0.0  # of each lease, by a reward model
    train: float = 1.0
    weights: float = 0.0  # that a generator waits for in a step
    publish: float = 0.0
    trainer: str = "trainer"
    steps: int = 10

    def spans(self) -> list[Span]:
        found = []
        for step in range(self.steps):
            at = BEGAN + step * self.seconds
            for worker, (leases, seconds) in self.generate.items():
                for lease in range(leases):
                    loading = 0.0 if lease else self.weights
                    began = at + lease * seconds
                    found.append(Span(worker, "generate", began, began + loading + seconds, loading=loading))
                    verified = began + seconds + self.verify
                    found.append(Span("judge", "verify", began + seconds, verified))
                    if self.reward:
                        found.append(Span("rater", "reward", verified, verified + self.reward))
            found.append(Span(self.trainer, "train", at + self.seconds - self.train, at + self.seconds))
            found.append(Span(self.trainer, "publish", at + self.seconds, at + self.seconds + self.publish))
        return sorted(found, key=lambda span: span.end)

    @property
    def figures(self) -> dict[str, list[float]]:
        busy = self.train + sum(n * s for worker, (n, s) in self.generate.items() if worker == self.trainer)
        each = {"perf/step_seconds": self.seconds, "perf/trainer_busy": busy / self.seconds, "perf/log_seconds": 0.0}
        return {name: [value] * self.steps for name, value in each.items()}

    def limit(self, staleness: int, machines: dict[str, Machine] | None = None) -> Limit | None:
        return limit_of_steps(GRAPH, staleness, self.spans(), self.figures, machines or {}, cut=False)


JETSON = {"jetson": (8, 0.5)}
SHARED = {"jetson": Machine("home", 2), "trainer": Machine("home", 2)}


@pytest.mark.parametrize(
    ("run", "staleness", "words", "gain"),
    [
        (Lived(4.0, JETSON, train=2.5), 1,
         "the trainer waits 38% of the time for rollouts; one more generator like jetson would make steps", 4 / 2.5),
        (Lived(4.0, {"jetson": (6, 0.667), "old": (2, 2.0)}, train=1.0), 1,
         "the trainer waits 75% of the time for rollouts; one more generator like jetson would make steps", 7 / 4),
        (Lived(4.0, {"jetson": (8, 0.125)}, train=3.9), 1,
         "the trainer is busy 98% of the time; one twice as fast would make steps", 2.0),
        (Lived(4.0, {"jetson": (8, 0.125)}, verify=0.5), 1,
         "the trainer waits 75% of the time for verdicts; one more verifier like judge would make steps", 2.0),
        (Lived(4.0, {"jetson": (8, 0.125)}, weights=3.0), 1,
         "generators wait 68% of the time for weights; a connection twice as fast would make steps", 4 / 2.5),
        (Lived(6.0, {"jetson": (8, 0.125)}, publish=6.0), 1,
         "the trainer waits 83% of the time for weights; a connection twice as fast would make steps", 2.0),
        (Lived(6.0, {"jetson": (8, 0.625)}, train=3.0, publish=6.0), 2,
         "the trainer waits 50% of the time for weights; a connection twice as fast would make steps", 6 / 5),
        (Lived(4.0, {"jetson": (8, 0.25)}, train=2.0), 0,
         "generation and training take turns (staleness 0), and the trainer waits 50% of the time; staleness 1 would "
         "make steps", 2.0),
        (Lived(4.0, {"mac": (8, 0.25)}, train=2.0, trainer="mac"), 1,
         "mac generates and trains by turns, and updates take 50% of the time; one more generator like mac would make "
         "steps", 2.0),
    ],
)  # fmt: skip
def test_it_is_what_a_person_would_say(run: Lived, staleness: int, words: str, gain: float) -> None:
    found = run.limit(staleness)
    assert found is not None
    assert found.found.seconds == pytest.approx(run.seconds, rel=NEAR)
    said = found.words()
    assert said.startswith(words)
    times = re.match(r" ([\d.]+) times faster", said.removeprefix(words))
    assert times is not None, said
    assert float(times[1]) == pytest.approx(gain, rel=NEAR)


def after(earlier: Lived, later: Lived) -> Limit | None:
    """What limits a run that was like `earlier` and is like `later`."""
    began = earlier.seconds * earlier.steps
    moved = [replace(span, start=span.start + began, end=span.end + began) for span in later.spans()]
    figures = {name: each + later.figures[name] for name, each in earlier.figures.items()}
    spans = sorted([*earlier.spans(), *moved], key=lambda span: span.end)
    return limit_of_steps(GRAPH, 1, spans, figures, {}, cut=False)


ALONE, BOTH = Lived(4.0, {"jetson": (8, 0.5)}), Lived(2.0, {"jetson": (4, 0.5), "old": (4, 0.5)})


@pytest.mark.parametrize("before", [5, 25, 40])
def test_of_generators_that_come_and_go_it_is_of_those_that_are_there(before: int) -> None:
    left = after(replace(BOTH, steps=before), replace(ALONE, steps=10))
    assert left is not None
    assert (left.places["generate"], left.found.seconds) == (("jetson",), pytest.approx(4, rel=NEAR))
    assert left.words().startswith("the trainer waits 75% of the time for rollouts; one more generator like jetson")
    joined = after(replace(ALONE, steps=before), replace(BOTH, steps=10))
    assert joined is not None
    assert (joined.places["generate"], joined.found.seconds) == (("jetson", "old"), pytest.approx(2, rel=NEAR))
    assert after(replace(ALONE, steps=before), replace(BOTH, steps=STEPS - 1)) is None


def test_a_generator_that_has_few_leases_has_not_left() -> None:
    quick = Lived(2.0, {"jetson": (4, 0.5)}, steps=60)
    seldom = [Span("old", "generate", BEGAN + at, BEGAN + at + 9.9) for at in range(0, 110, 10)]
    spans = sorted([*quick.spans(), *seldom], key=lambda span: span.end)
    found = limit_of_steps(GRAPH, 1, spans, quick.figures, {}, cut=False)
    assert found is not None
    assert found.places["generate"] == ("jetson", "old")


def test_what_else_would_do_is_said_beside_it() -> None:
    def said(run: Lived, staleness: int = 1, machines: dict[str, Machine] | None = None) -> str:
        found = run.limit(staleness, machines)
        assert found is not None
        return found.words()

    assert re.search(r"times faster, 3 would keep the trainer busy$", said(Lived(4.0, JETSON, train=1.05)))
    spare = Lived(4.0, {"jetson": (7, 0.125), "old": (1, 1.0)}, train=3.9)
    assert said(spare).endswith("; of 2 generators jetson would do")
    assert re.search(
        r"staleness 1 would make steps [\d.]+ times faster, one more generator like jetson [\d.]+ times$",
        said(Lived(4.0, {"jetson": (8, 0.25)}, train=2.0), 0),
    )
    many = Lived(4.0, {f"g{at}": (1, 4.0) for at in range(MOST_WORKERS)})
    assert "for rollouts; one more generator like g0 would make steps" in said(many)
    assert "like jetson on a machine of its own would" in said(Lived(4.0, JETSON), machines=SHARED)


def test_nothing_is_said_of_a_few_steps_or_of_what_their_calls_do_not_explain() -> None:
    run = Lived(4.0, JETSON)
    assert replace(run, steps=STEPS - 1).limit(1) is None
    assert replace(run, steps=STEPS).limit(1) is not None
    assert replace(run, train=0.0).limit(1) is None
    assert Lived(4.0, {f"g{at}": (1, 4.0) for at in range(MOST_WORKERS + 1)}).limit(1) is None
    odd = replace(run, seconds=9.0).limit(1)
    assert odd is not None
    assert (
        odd.words() == "the trainer waits 89% of the time; why is not known: a step took 9 s, and its calls explain 4 s"
    )
    loaded = replace(odd, costs=replace(odd.costs, machine={"jetson": "home"}, cores={"home": 2}, others={"home": 7.2}))
    load = "other programs wanted 7.2 cores beside jetson, which share 2"
    assert loaded.words() == odd.words().replace("why is not known", load)
    assert (
        limit_of_steps(graph_named("grpo", kl=True), 1, run.spans(), run.figures, {}, cut=True) is None
    )  # not its calls
    crowd = Lived(4.0, {f"g{at}": (1, 1.0) for at in range(33)})
    assert crowd.limit(1) is None
    even = Lived(1.05, {"jetson": (8, 0.125), "mac": (8, 0.125)}, verify=0.0625).limit(2)
    assert even is not None
    assert even.words() == (
        "no part limits the run by itself: the trainer waits 5% of the time, and no single change would make steps "
        "10% faster"
    )


def test_steps_of_before_are_forgotten() -> None:
    """Sixty steps that wait for rollouts, then fifty in which a second generator is there."""
    first, then = Lived(4.0, JETSON, steps=60), Lived(2.0, {"jetson": (4, 0.5), "mac": (4, 0.5)}, steps=52)
    later = [replace(span, start=span.start + 240, end=span.end + 240) for span in then.spans()]
    figures = {name: [*values, *then.figures[name]] for name, values in first.figures.items()}
    found = limit_of_steps(GRAPH, 1, [*first.spans(), *later], figures, {}, cut=False)
    assert found is not None
    assert found.step.seconds == 2.0
    assert found.places["generate"] == ("jetson", "mac")
    assert found.words().startswith("the trainer waits 50% of the time for rollouts")


@pytest.mark.parametrize(
    "config", [{}, {"staleness": 1, "algorithm": {"name": "grpo"}}, {"staleness": "odd"}, {"staleness": 9**9}]
)
def test_a_report_reads_what_there_is(config: dict[str, object]) -> None:
    run = Lived(4.0, JETSON)
    lines = [
        MetricLine(step=step + 1, time=0, metrics={name: values[step] for name, values in run.figures.items()})
        for step in range(run.steps)
    ]
    found = limit_of_record(Record(tuple(lines), (tuple(run.spans()),)), config)
    if config.get("staleness", 1) == 1:
        assert found is not None
        assert found.words().startswith("the trainer waits 75% of the time for rollouts")
    else:
        assert found is None
    assert limit_of_record(Record((), ()), config) is None
