"""What is read from a run's timeline is what the run did."""

from pathlib import Path

import pytest

from flows.planner.drawing import graph_named
from flows.planner.measured import NothingMeasuredError, costs_of, measured_step, present_places
from flows.planner.memory import memory, sizes
from infra.runs.record import read_record
from tests.flows.planner.kept_run import keep_run


def test_a_step_is_what_its_calls_took_without_cold_starts_and_what_is_no_step(tmp_path: Path) -> None:
    run = keep_run(tmp_path / "run")
    step = measured_step(read_record(str(run), run), str(run))
    assert step.steps == 5
    assert step.seconds == 4.0  # the first, longer one counts for little
    assert step.leases == {"generate": 4, "verify": 4, "train": 1, "publish": 1}
    assert step.calls["generate"]["fast"].seconds == pytest.approx(1.0)  # 5 s more of the first are left out
    assert step.calls["generate"]["slow"].seconds == pytest.approx(3.0)
    assert step.taken("generate") == pytest.approx(2 * 1 + 2 * 3)
    assert step.taken("train") == pytest.approx(1.0)  # neither the model's check nor its export
    assert step.taken("verify") == pytest.approx(4 * 0.25)  # not what judged the evaluation
    # of 10 leases the first is left out, and every other one waits for weights
    assert step.waiting["generate"]["fast"] == pytest.approx(2 * 0.5 * 4 / 9)
    assert step.handing_over == pytest.approx(0.125 + 0.0625)
    assert step.busy["trainer"] == pytest.approx(1.0)  # what is published beside it does not count


def test_costs_are_of_a_whole_step_s_work(tmp_path: Path) -> None:
    run, other = keep_run(tmp_path / "run"), keep_run(tmp_path / "other", generate={"third": 2.0})
    step, more = (measured_step(read_record(str(one), one), str(one)) for one in (run, other))
    graph = graph_named("grpo", kl=False)
    costs = costs_of(graph, step, memory={}, size={}, others=[more])
    assert costs.leases == 4
    assert costs.call("generate").seconds == pytest.approx({"fast": 4.0, "slow": 12.0, "third": 4.0})
    assert costs.call("verify").seconds == pytest.approx({"judge": 1.0})
    assert costs.call("train").before == ("generate", "verify")
    assert present_places(graph, step) == {"generate": ("fast", "slow"), "verify": ("judge",), "train": ("trainer",)}
    with pytest.raises(NothingMeasuredError, match="the run made no call reference"):
        costs_of(graph_named("grpo", kl=True), step, memory={}, size={})


def test_memory_is_what_the_workers_announced_and_the_weights_are(tmp_path: Path) -> None:
    run = keep_run(tmp_path / "run", memory_gb={"fast": 8.0})
    record = read_record(str(run), run)
    assert memory(record) == {"fast": 8e9}
    assert sizes(graph_named("ppo", kl=True), record) == {
        "actor": 1e9,
        "critic": 1e9,
        "reference": 1e9,
        "actor in training": 8e9,
        "critic in training": 8e9,
    }


def test_a_run_that_says_too_little_is_named(tmp_path: Path) -> None:
    run = keep_run(tmp_path / "short", steps=2)
    with pytest.raises(NothingMeasuredError, match=r"short has 2 steps in its timeline, and figures need 3"):
        measured_step(read_record(str(run), run), str(run))
    (run / "timeline.jsonl").unlink()
    with pytest.raises(NothingMeasuredError, match=r"short has no timeline, so nothing is known of its calls"):
        measured_step(read_record(str(run), run), str(run))
