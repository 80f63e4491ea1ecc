"""What a worker costs whose leases another one had done before: its spans say nothing of their tokens, and are
no work of a step."""

from flows.planner.calls import graph_named, planned_calls
from flows.planner.measured import FIGURES, costs_of, step_of
from infra.cluster.timeline import Span
from tests.infra.planning.works import work_of

STEPS = 6


def test_a_worker_whose_leases_came_too_late_is_not_taken_for_a_thousand_times_slower() -> None:
    spans = []
    for step in range(STEPS):
        at = 100.0 + 10 * step
        spans += [
            Span("fast", "generate", at, at + 4, tokens=1000),
            Span("fast", "generate", at + 4, at + 8, tokens=1000),
            Span("slow", "generate", at, at + 8),  # a late copy, or refused: LeaseQueue gives these no tokens
            Span("trainer", "train", at + 8, at + 9),
            Span("trainer", "publish", at + 9, at + 9.5),
        ]
    figures = {name: [10.0] * STEPS for name in FIGURES}
    found = step_of(spans, figures, {}, "a run").calls["generate"]
    assert found["slow"].seconds < 10 * found["fast"].seconds


def test_work_that_was_dropped_is_time_and_no_work_of_a_step() -> None:
    def session(*, with_copies: bool) -> list[Span]:
        spans = []
        for step in range(STEPS):
            at = 100.0 + 22 * step
            spans += [Span("g0", "generate", at + half, at + half + 10, tokens=120) for half in (0, 10)]
            spans += [Span("g1", "generate", at, at + 19, dropped=True)] if with_copies else []
            spans += [Span("trainer", "train", at + 20, at + 21), Span("trainer", "publish", at + 21, at + 21.5)]
        return spans

    figures = {name: [22.0] * STEPS for name in FIGURES}
    found, without = (step_of(session(with_copies=each), figures, {}, "a run") for each in (True, False))
    assert found.leases["generate"] == without.leases["generate"] == 2
    assert found.tokens["generate"] == without.tokens["generate"] == 240
    assert found.busy["g0"] == without.busy["g0"] == 20
    assert found.busy["g1"] == found.taken("generate") - without.taken("generate") == 19
    calls = planned_calls(graph_named("grpo", kl=False))[:1]
    assert work_of(costs_of(calls, found, memory={}, size={}), "generate").seconds == {"g0": 20, "g1": 38}
