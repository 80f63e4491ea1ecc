"""Whole runs in which the policy acts on an environment over several turns, whoever draws and whoever acts."""

import json
import os
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from infra.runs.rollouts import read_rollouts
from tests.processes import until

LENGTHS = '''
import time


class Lengths:
    """Whatever is said is answered by how long it is; what is of even length ends the episode."""

    turns, seconds, memory = 3, 5.0, 128

    def reset(self, **_):
        self.said, self.over = 0, False

    def step(self, text):
        time.sleep(SECONDS)
        self.said += 1
        self.over = len(text) % 2 == 0
        return f"{len(text)} of {self.said}"

    def get_reward(self):
        return self.said / 4 + self.over
'''
TWO = {"placement__generate": "worker:generator-0,worker:verifier-0", "placement__verify": "worker:trainer"}


def options(lab: Any, seconds: float = 0.0, **others: str) -> dict[str, str]:
    """Of a run on it, which takes so many seconds for a turn."""
    path = lab.home / "lengths.py"
    path.write_text(LENGTHS.replace("SECONDS", str(seconds)))
    given = {"environment": f"{path}:Lengths", "sampling__max_tokens": "36", "audit__share": "0", "staleness": "0"}
    return {**given, "steps": "2", "held_out": "4", "batch__oversample": "1", "batch__lease": "1", **others}


def rows(run: Path) -> list[Mapping[str, Any]]:
    """Of both steps, but for who has drawn them."""
    return [{**row, "worker": ""} for step in (1, 2) for row in read_rollouts(str(run), step)]


@pytest.fixture(scope="module")
def once(lab: Any) -> list[Mapping[str, Any]]:
    """What one generator draws on policy."""
    run = Path(lab.train(**options(lab)).run)
    assert all(1 < turns <= 3 for turns in lab.metrics(run, "turns/mean").values())
    assert lab.metrics(run, "tools/calls") == lab.metrics(run, "turns/mean")
    assert set(lab.metrics(run, "tools/errors").values()) == {0}
    assert min(lab.metrics(run, "tools/seconds").values()) > 0
    assert set(lab.metrics(run, "groups/failed").values()) == {0}
    assert set(lab.metrics(run, "leases/refused").values()) == {0}
    assert max(lab.metrics(run, "policy/mismatch_kl").values()) < 1e-9
    assert len(lab.metrics(run, "eval/reward")) == 2
    found = rows(run)
    assert any("trained" in row for row in found)
    assert {row["reason"] for row in found} == {"graded"}
    for row in found:
        messages = json.loads(row["messages"])
        assert [each["role"] for each in messages[:3]] in (["assistant", "user", "assistant"], ["assistant", "user"])
        assert messages[1]["content"] == f"{len(messages[0]['content'])} of 1"
        assert row["completion"] == "\n".join(each["content"] for each in messages)
    return found


@pytest.mark.slow
def test_two_generators_draw_the_batches_of_one(lab: Any, once: list[Mapping[str, Any]]) -> None:
    run = Path(lab.train(**options(lab), **TWO).run)
    assert rows(run) == once
    drawn_by = {row["worker"] for step in (1, 2) for row in read_rollouts(str(run), step)}
    assert {name for names in drawn_by for name in str(names).split(", ")} == {"generator-0", "verifier-0"}


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["verifier-0", "generator-0"])
def test_a_worker_that_is_killed_in_the_middle_of_episodes_changes_nothing(
    lab: Any, once: list[Mapping[str, Any]], lost: str
) -> None:
    lab.settle()
    address, process = lab.worker(lost)
    calls: set[str] = set()

    def is_in_the_middle() -> bool:
        calls.update(map(str, lab.client.sync(lab.client.scheduler.processing, workers=None).get(address, ())))
        return len(calls) >= 6  # one or two for each lease before its first turn is over

    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(lab.train, **options(lab, seconds=0.2))
        until(lambda: training.done() or is_in_the_middle(), 100)
        os.kill(process, signal.SIGKILL)
        result = training.result(200)
    assert sum(result.lost.values()) >= 1
    assert rows(Path(result.run)) == once


@pytest.mark.slow
def test_generation_may_run_ahead_of_training_in_slices(lab: Any) -> None:
    run = Path(lab.train(**options(lab, steps="3", staleness="1", batch__slice_seconds="0.01", **TWO)).run)
    assert set(lab.metrics(run, "leases/refused").values()) == {0}
    assert set(lab.metrics(run, "groups/failed").values()) == {0}
    assert max(lab.metrics(run, "staleness/max").values()) <= 1
    assert max(lab.metrics(run, "turns/mean").values()) > 1


@pytest.mark.slow
def test_the_command_acts_on_a_built_in_environment(lab: Any) -> None:
    run = Path(lab.train(**options(lab, environment="guess", problems="guess", steps="1", batch__prompts="2")).run)
    assert lab.metrics(run, "reward/mean") == {1: 0}  # the policy knows no tools
    assert lab.metrics(run, "turns/mean") == {1: 1}


@pytest.mark.slow
def test_a_run_that_was_stopped_between_steps_goes_on_as_if_it_had_not_been(
    lab: Any, once: list[Mapping[str, Any]]
) -> None:
    run = lab.train(**options(lab, steps="1")).run
    lab.train(resume=run, **options(lab))
    assert rows(Path(run)) == once


@pytest.mark.slow
def test_a_run_and_a_model_are_evaluated_on_an_environment(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Path(lab.train(**options(lab, held_out="6")).run)
    own = lab.metrics(run, "eval/reward")[2], lab.metrics(run, "eval/reward_sampled")[2]
    monkeypatch.setattr("tasks.evaluate.OPEN", 8)  # two problems at a time
    found = lab.evaluate(policy=str(run), sampling__max_tokens="36")
    assert found.problems == 6
    assert (found.reward, found.reward_sampled) == pytest.approx(own, abs=1e-6)
    given = options(lab)
    of_model = {name: given[name] for name in ("environment", "sampling__max_tokens")}
    asked = {"problems": str(lab.problems), "held_out": "6", "samples": "4", "seed": "0"}
    before = lab.evaluate(policy=str(lab.policy), **asked, **of_model)
    at_first = lab.metrics(run, "eval/reward")[0], lab.metrics(run, "eval/reward_sampled")[0]
    assert (before.reward, before.reward_sampled) == pytest.approx(at_first, abs=1e-6)


@pytest.mark.slow
def test_problems_of_one_turn_are_trained_and_evaluated_on_beside_it(lab: Any) -> None:
    mix = f"[{{path: '{lab.problems}', verifier: arithmetic}}]"
    played = lab.home / "played.jsonl"
    played.write_text("".join(f'{{"prompt": "say {n}", "target": "{n}"}}\n' for n in range(40)))
    evals = "[{path: held_out}, {path: countdown, limit: 3}]"
    asked = {"problems": str(played), "mix": mix, "evals": evals}
    run = Path(lab.train(**options(lab, **asked)).run)
    assert set(lab.metrics(run, "leases/refused").values()) == {0}
    assert set(lab.metrics(run, "groups/failed").values()) == {0}
    assert max(lab.metrics(run, "policy/mismatch_kl").values()) < 1e-9
    assert all(turns > 1 for turns in lab.metrics(run, "turns/mean").values())
    found = rows(run)
    single, several = ([row for row in found if ("messages" in row) == one] for one in (False, True))
    assert {row["source"].partition(":")[0] for row in single} == {lab.problems.name}
    assert {row["source"].partition(":")[0] for row in several} == {"played.jsonl"}
    assert not any("trained" in row for row in single)
    assert {row["reason"] for row in several} == {"graded"}
    assert "graded" not in {row["reason"] for row in single}
    assert lab.metrics(run, "eval/played/turns")[2] > 1
    assert lab.metrics(run, "eval/played/turns_sampled") != {}
    assert lab.metrics(run, f"eval/{lab.problems.stem}/turns") == {}
    assert lab.metrics(run, "eval/countdown/reward") != {}
    by_two = Path(lab.train(**options(lab, **asked, audit__share="1"), **TWO).run)
    assert rows(by_two) == found
    assert set(lab.metrics(by_two, "audit/disagreed").values()) == {0}
    again = lab.evaluate(policy=str(run), sampling__max_tokens="36")
    assert again.reward == pytest.approx(lab.metrics(run, "eval/reward")[2], abs=1e-6)
    alone = lab.evaluate(policy=str(run), problems=str(lab.problems), sampling__max_tokens="36", held_out="4")
    assert alone.reward == pytest.approx(lab.metrics(run, f"eval/{lab.problems.stem}/reward")[2], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("staleness", ["0", "1"])
def test_audits_agree_about_every_turn(lab: Any, once: list[Mapping[str, Any]], staleness: str) -> None:
    run = Path(lab.train(**options(lab, audit__share="1", staleness=staleness, **TWO)).run)
    assert min(lab.metrics(run, "audit/leases").values()) >= 1
    assert set(lab.metrics(run, "audit/disagreed").values()) == {0}
    assert max(lab.metrics(run, "audit/kl").values()) < 1e-6
    if staleness == "0":
        assert rows(run) == once


@pytest.mark.slow
@pytest.mark.parametrize("of", [{"algorithm": "ppo"}, {"policy__lora": "4"}, {"algorithm__kl": "0.01"}])
def test_critics_adapters_and_references_see_several_turns(lab: Any, of: dict[str, str]) -> None:
    run = Path(lab.train(**options(lab, **of)).run)
    assert max(lab.metrics(run, "turns/mean").values()) > 1
    assert max(lab.metrics(run, "policy/mismatch_kl").values()) < 1e-9
    assert all(0 < norm < 1e6 for norm in lab.metrics(run, "policy/grad_norm").values())
