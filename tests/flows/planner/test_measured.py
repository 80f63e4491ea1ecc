"""What is read from a run's timeline is what the run did."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from flows.planner.calls import graph_named, planned_calls
from flows.planner.contention import Machine, load
from flows.planner.drawing import drawing
from flows.planner.measured import NothingMeasuredError, costs_of, measured_step, present_places
from infra.cluster.placement import PlacementConfig
from infra.cluster.timeline import Span
from infra.runs.record import read_record
from tests.flows.planner.kept_run import keep_run
from tests.infra.planning.works import work_of


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
    assert step.handing_over == pytest.approx(0.125)  # bookkeeping goes on beside it
    assert step.logging == pytest.approx(0.0625)
    assert step.busy["trainer"] == pytest.approx(1.0)  # what is published beside it does not count


def test_leases_of_several_sizes_cost_what_they_would_if_all_were_of_one(tmp_path: Path) -> None:
    """The slow one takes three times as long for a token, and has leases of a third of the tokens."""
    run = keep_run(tmp_path / "run", generate={"fast": 1.0, "slow": 1.0})
    spans = [json.loads(line) for line in (run / "timeline.jsonl").read_text().splitlines()]
    for one in spans:
        if one.get("call") == "generate":
            one["tokens"] = {"fast": 600, "slow": 200}[one["worker"]]
    (run / "timeline.jsonl").write_text("".join(json.dumps(one) + "\n" for one in spans))
    step = measured_step(read_record(str(run), run), str(run))
    assert {worker: each.tokens for worker, each in step.calls["generate"].items()} == {"fast": 600, "slow": 200}
    assert step.tokens["generate"] == 1600
    assert step.taken("generate") == pytest.approx(4.0)
    assert step.busy["slow"] == pytest.approx(2 + 2 * 0.5 * 5 / 9, abs=0.2)
    costs = costs_of(planned_calls(graph_named("grpo", kl=False)), step, memory={}, size={}, cut=True)
    # 1600 tokens a step: alone the fast one would take 1600 / 600 s, the slow one 1600 / 200
    assert work_of(costs, "generate").seconds == pytest.approx({"fast": 1600 / 600, "slow": 1600 / 200})
    assert costs.cut


def test_what_a_lease_takes_whatever_its_size_is_told_apart_from_what_its_tokens_take(tmp_path: Path) -> None:
    """A lease takes .5 s, and a thousandth of a second for a token, on the slow one three times as long."""
    run = keep_run(tmp_path / "run", generate={"fast": 1.0, "slow": 1.0}, cold=0.0)
    spans = [json.loads(line) for line in (run / "timeline.jsonl").read_text().splitlines()]
    for at, one in enumerate(spans):
        if one.get("call") == "generate":
            times, one["tokens"] = {"fast": (1, 500 + 100 * at % 1700), "slow": (3, 100)}[one["worker"]]
            one["end"] = one["start"] + one.get("loading", 0.0) + times * (0.5 + one["tokens"] / 1000)
    (run / "timeline.jsonl").write_text("".join(json.dumps(one) + "\n" for one in spans))
    step = measured_step(read_record(str(run), run), str(run))
    costs = costs_of(planned_calls(graph_named("grpo", kl=False)), step, memory={}, size={})
    found = work_of(costs, "generate")
    for worker, times in (("fast", 1), ("slow", 3)):  # the slow one has leases of one size, which do not say it
        assert found.fixed[worker] == pytest.approx(times * 0.5, rel=0.1)
        assert found.seconds[worker] == pytest.approx(times * step.tokens["generate"] / 1000, rel=0.1)
    assert work_of(costs, "train").fixed == {}


def test_costs_are_of_a_whole_step_s_work(tmp_path: Path) -> None:
    run, other = keep_run(tmp_path / "run"), keep_run(tmp_path / "other", generate={"third": 2.0})
    step, more = (measured_step(read_record(str(one), one), str(one)) for one in (run, other))
    calls = planned_calls(graph_named("grpo", kl=False))
    costs = costs_of(calls, step, memory={}, size={}, others=[more])
    assert costs.leases == 4
    assert work_of(costs, "generate").seconds == pytest.approx({"fast": 4.0, "slow": 12.0, "third": 4.0})
    assert work_of(costs, "verify").seconds == pytest.approx({"judge": 0.75})  # between 4 verdicts a step and 2
    assert work_of(costs, "train").before == ("generate", "verify")
    assert present_places(calls, step) == {"generate": ("fast", "slow"), "verify": ("judge",), "train": ("trainer",)}
    with pytest.raises(NothingMeasuredError, match="the run made no call reference"):
        costs_of(planned_calls(graph_named("grpo", kl=True)), step, memory={}, size={})


def test_what_several_runs_measured_is_their_median_without_first_calls(tmp_path: Path) -> None:
    kept = [keep_run(tmp_path / f"{seconds}", generate={"fast": seconds}) for seconds in (1.0, 2.0, 9.0)]
    cold = keep_run(tmp_path / "cold", generate={"fast": 1.0})
    lines = (cold / "timeline.jsonl").read_text().splitlines()
    only = next(line for line in lines if '"generate"' in line)
    kept_lines = [line for line in lines if '"generate"' not in line or line == only]
    (cold / "timeline.jsonl").write_text("\n".join(kept_lines))
    steps = [measured_step(read_record(str(one), one), str(one)) for one in (*kept, cold)]
    calls = planned_calls(graph_named("grpo", kl=False))
    costs = costs_of(calls, steps[0], memory={}, size={}, others=steps[1:])
    assert work_of(costs, "generate").seconds == pytest.approx({"fast": 2 * 2.0})


def test_waits_for_a_core_are_no_work_and_tell_how_many_others_leave(tmp_path: Path) -> None:
    """Each lease takes 1 s of a core and as long again for another one to be free."""
    machines = dict.fromkeys(("fast", "slow", "judge", "trainer"), ("m", 2))
    run = keep_run(tmp_path / "run", machines=machines)
    spans = [json.loads(line) for line in (run / "timeline.jsonl").read_text().splitlines()]
    for one in spans:
        if one.get("call") == "generate":
            took = one["end"] - one["start"] - one.get("loading", 0.0)
            one |= {"computing": took / 2, "delayed": took / 2}
    (run / "timeline.jsonl").write_text("".join(json.dumps(one) + "\n" for one in spans))
    step = measured_step(read_record(str(run), run), str(run))
    assert step.calls["generate"]["slow"].seconds == pytest.approx(1.5)
    assert step.calls["generate"]["slow"].computing == pytest.approx(1.0)
    assert step.calls["verify"]["judge"].computing == 1.0  # nothing is known of it
    assert set(step.machine.values()) == {"m"}
    assert step.cores == {"m": 2}
    assert step.others["m"] > 1
    drawn = drawing("run", graph_named("grpo", kl=False), PlacementConfig(), step)
    lines = {node.name: " ".join(node.lines) for node in drawn.nodes}
    assert f"{step.delayed['generate']:.2g} s for a core" in lines["generate"]
    assert "for a core" not in lines["verify"]


def test_calls_that_wait_for_each_other_s_cores_tell_of_no_other_program() -> None:
    machine = {name: Machine("m", 2) for name in "abc"}
    beside = [Span(name, "generate", 100.0, 103.0, computing=2.0, delayed=1.0) for name in "abc"]
    assert load(beside, machine) == {"m": 0.0}
    alone = [Span("a", "generate", 100.0, 102.0, computing=2.0)]
    assert load(alone, machine) == {"m": 0.0}
    waiting = [Span("a", "generate", 100.0, 104.0, computing=2.0, delayed=2.0)]  # as beside three others of two cores
    assert load(waiting, machine)["m"] == pytest.approx(3, abs=0.3)


def test_short_calls_that_wait_as_they_begin_do_not_speak_for_the_machine() -> None:
    """A call of 10 s on a core of its own; beside it 20 of 0.1 s, half of it waits for the run itself."""
    machine = {name: Machine("m", 2) for name in "ab"}
    short = [Span("b", "value", 100.0 + at / 4, 100.1 + at / 4, computing=0.05, delayed=0.05) for at in range(20)]
    long = Span("a", "train", 100.0, 110.0, computing=9.8, delayed=0.2)
    assert load([long, *short], machine)["m"] < 0.5
    assert load(short, machine)["m"] > 2  # where nothing else is known
    busy = replace(long, end=120.0, delayed=10.2)  # a core for half of the time
    assert load([busy, *short], machine)["m"] > 2


def test_greedy_completions_are_made_of_the_prompts_of_each_lease() -> None:
    calls = {call.name: call for call in planned_calls(graph_named("remax", kl=False))}
    assert calls["greedy"].before == ("generate",)
    assert set(calls["train"].before) == {"generate", "verify", "greedy"}


def test_a_reward_model_scores_what_is_verified() -> None:
    calls = planned_calls(graph_named("ppo", kl=True, calls=["generate", "verify", "reward"]))
    by_name = {call.name: call for call in calls}
    assert by_name["reward"].before == ("generate", "verify")
    assert "reward" in by_name["train"].before
    assert "reward" in by_name["train_critic"].before
    seen: set[str] = set()
    for call in calls:
        assert set(call.before) <= seen
        seen.add(call.name)


def test_a_run_that_says_too_little_is_named(tmp_path: Path) -> None:
    run = keep_run(tmp_path / "short", steps=2)
    with pytest.raises(NothingMeasuredError, match=r"short has 2 steps in its timeline, and figures need 3"):
        measured_step(read_record(str(run), run), str(run))
    (run / "timeline.jsonl").unlink()
    with pytest.raises(NothingMeasuredError, match=r"short has no timeline, so nothing is known of its calls"):
        measured_step(read_record(str(run), run), str(run))
