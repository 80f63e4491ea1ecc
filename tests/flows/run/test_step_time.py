"""What of a step's time the machines worked, whatever shares a worker and whatever runs beside it."""

import random
from types import SimpleNamespace

import pytest

from flows.run.step_time import StepTime, TimedStep, computing
from infra.cluster.timeline import Span

# a step of PPO with a divergence from a reference, of 10 s from second 100: 4 s of rollouts, 5 s of updates
STEP = TimedStep((100.0, 110.0), (104.5, 109.5), {"rollouts": 4.0, "update": 5.0, "publish": 0.25})
ROLLOUTS = [
    Span("generator-0", "generate", 100.0, 102.0),
    Span("generator-0", "reference", 102.0, 103.0),
    Span("trainer", "value", 102.0, 104.0, loading=0.5),
]
BY_TURNS = [Span("trainer", "train_critic", 104.5, 107.5), Span("trainer", "train", 107.5, 109.0)]
SIDE_BY_SIDE = [Span("critic-0", "train_critic", 104.5, 107.5), Span("trainer", "train", 104.5, 106.0)]


def shares(spans: list[Span], step: TimedStep = STEP) -> tuple[float, float]:
    """The trainer's share of the step, and that in which nothing worked."""
    found = step.figures(spans)
    return found["perf/trainer_busy"], found["perf/overhead_fraction"]


def test_updates_by_turns_on_one_worker_are_its_work_both_and_so_are_scores() -> None:
    busy, overhead = shares([*ROLLOUTS, *BY_TURNS])
    assert busy == pytest.approx((1.5 + 3 + 1.5) / 10)
    assert overhead == pytest.approx((10 - 4 - 4.5) / 10)


def test_updates_side_by_side_are_waited_for_as_long_as_the_longer_one_takes() -> None:
    busy, overhead = shares([*ROLLOUTS, *SIDE_BY_SIDE])
    assert busy == pytest.approx((1.5 + 1.5) / 10)  # the critic's is another worker's
    assert overhead == pytest.approx((10 - 4 - 3) / 10)


def test_an_update_that_waits_for_scores_of_the_next_batch_waits_for_work() -> None:
    ahead = Span("trainer", "value", 104.5, 105.5)
    late = [Span("trainer", "train", 105.5, 109.0)]
    assert shares([ahead, *late])[1] == pytest.approx((10 - 4 - 4.5) / 10)
    elsewhere = Span("generator-0", "value", 104.5, 105.5)  # which keeps no update waiting
    assert shares([elsewhere, *late])[1] == pytest.approx((10 - 4 - 3.5) / 10)


def test_publishing_beside_an_update_and_what_was_lost_are_not_counted() -> None:
    beside = [Span("trainer", "publish", 104.5, 109.5), Span("trainer", "train", 104.5, 107.5, lost=True)]
    once = [Span("trainer", "train", 108.5, 109.5)]
    assert shares([*beside, *once]) == (pytest.approx(0.1), pytest.approx(0.5))


def test_calls_count_as_far_as_they_ran_in_the_step() -> None:
    across = [Span("trainer", "value", 95.0, 101.0), Span("trainer", "train", 105.0, 106.0)]
    assert shares(across)[0] == pytest.approx(0.2)
    assert shares([]) == (0.0, pytest.approx(0.6))


def test_the_time_that_calls_cover_together_is_that_of_a_fine_grid() -> None:
    draw = random.Random(0)
    for _ in range(50):
        spans = [Span("w", "train", start := draw.randrange(300), start + draw.randrange(80)) for _ in range(9)]
        ticks = [tick for tick in range(100, 200) if any(span.start <= tick < span.end for span in spans)]
        assert computing(spans, (100.0, 200.0)) == len(ticks)


def test_a_step_s_stages_are_its_own_and_an_evaluation_counts_towards_none(monkeypatch: pytest.MonkeyPatch) -> None:
    since = 1_790_000_000.0  # the calendar's time when this process's clock said 0
    seconds = iter([10, 11, 13, 13, 18, 20, 27])  # what it says
    at = 0.0

    def told() -> float:
        nonlocal at
        at = next(seconds)
        return at

    monkeypatch.setattr("flows.run.step_time.time", SimpleNamespace(perf_counter=told, time=lambda: since + at))
    now = StepTime()
    with now.timed("rollouts"):
        pass
    with now.timed("update"):
        pass
    now.leave_out(0.5)
    first = now.end()
    assert first == TimedStep((since + 10.5, since + 20), (since + 13, since + 18), {"rollouts": 2, "update": 5})
    assert now.end() == TimedStep((since + 20, since + 27), (since + 20, since + 20), {})


def test_generators_sample_at_most_all_of_a_step_and_no_second_is_lost_or_counted_twice() -> None:
    draw, time = random.Random(0), StepTime()
    leases = [[Span("g", "generate", 0.0, draw.uniform(0, 9), loading=0.5)] * draw.randrange(4) for _ in range(200)]
    steps = [draw.uniform(0.5, 9) for _ in leases] + [99.0] * 20
    shares = [time.sampling(spans, room, {"g"}) for spans, room in zip([*leases, *([[]] * 20)], steps, strict=True)]
    assert max(shares) <= 1
    assert min(shares) == 0
    counted = sum(share * room for share, room in zip(shares, steps, strict=True))
    assert counted == pytest.approx(sum(span.end - 0.5 for spans in leases for span in spans))
    assert time.sampling([Span("g", "generate", 0, 9, lost=True), Span("g", "evaluate", 0, 9)], 1, {"g"}) == 0


def test_generators_that_join_and_leave_count_while_they_are_there() -> None:
    def sampled(there: int, back: int, share: float, time: StepTime) -> float:
        spans = [Span(f"g{at}", "generate", 0.0, 10 * share) for at in range(back)]
        return time.sampling(spans, 10.0, {f"g{at}" for at in range(there)})

    joined = StepTime()
    assert [sampled(there, there, 0.5, joined) for there in (1, 4, 4, 4, 1, 1)] == [0.5] * 6
    left = StepTime()
    assert [sampled(there, back, 1.0, left) for there, back in ((4, 4), (1, 4), (1, 1), (0, 0))] == [1, 1, 1, 0]
    idle = StepTime()
    assert sampled(2, 1, 1.0, idle) == 0.5
    long = [idle.sampling([Span("g0", "generate", 0.0, 30.0)], 10.0, {"g0"}), idle.sampling([], 10.0, {"g1"})]
    assert long == [1, 0]  # what is left of a lease leaves with its generator
