"""What a worker costs whose leases another one had done before: its spans say nothing of their tokens."""

from flows.planner.measured import FIGURES, step_of
from infra.cluster.timeline import Span

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
