"""What an evaluation says of rewards."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

from rl.records import Problem
from tasks.evaluate import Evaluation

NAN = math.nan


def of_sets(*names: str) -> list[Problem]:
    return [Problem(f"what is {row}?", str(row), "", set=name) for row, name in enumerate(names)]


def test_mean_rewards_stand_beside_pass_rates_and_unjudged_completions_count_in_neither() -> None:
    greedy = np.array([[0.9], [1], [0.2]], np.float32)
    sampled = np.array([[0.9, 0.5], [1, NAN], [0.1, 0]], np.float32)
    found = Evaluation.of(7, of_sets("a", "a", "a"), greedy, sampled)
    assert (found.step, found.problems, found.k) == (7, 3, 2)
    assert found.reward == pytest.approx(0.7)
    assert found.greedy == pytest.approx(1 / 3)
    assert found.reward_sampled == pytest.approx(0.5)
    assert found.sampled == pytest.approx(1 / 5)
    assert found.pass_at_k == pytest.approx(1 / 3)
    assert found.error_rate == pytest.approx(1 / 9)
    assert found.sets == {}
    assert Evaluation(**json.loads(json.dumps(asdict(found)))) == found


def test_measures_are_means_over_the_completions_that_have_them() -> None:
    rewards = np.array([[1], [0], [0]], np.float32)
    measures = {
        "turns": np.array([[3], [NAN], [5]], np.float32),
        "part_found_sampled": np.array([[1, 0], [NAN, NAN], [1, NAN]], np.float32),
        "part_none": np.full((3, 1), NAN, np.float32),
    }
    found = Evaluation.of(0, of_sets("a", "b", "a"), rewards, rewards, None, measures)
    assert found.means == {"turns": 4, "part_found_sampled": pytest.approx(2 / 3)}
    assert found.figures()["turns"] == 4
    assert found.sets["a"]["turns"] == 4
    assert "turns" not in found.sets["b"]


def test_each_of_several_sets_has_figures_of_its_own() -> None:
    greedy = np.array([[1], [0], [0.5], [NAN]], np.float32)
    sampled = np.array([[1, 0], [1, 1], [0.5, 0], [NAN, NAN]], np.float32)
    found = Evaluation.of(0, of_sets("a", "b", "a", "c"), greedy, sampled)
    assert found.reward == pytest.approx(0.5)
    assert {name: by["reward"] for name, by in found.sets.items()} == pytest.approx(
        {"a": 0.75, "b": 0, "c": NAN}, nan_ok=True
    )
    assert {name: by["sampled"] for name, by in found.sets.items()} == {"a": 0.25, "b": 1, "c": 0}
    assert found.sets["c"]["error_rate"] == 1
    assert found.sizes == {"a": 2, "b": 1, "c": 1}
