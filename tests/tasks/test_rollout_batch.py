"""What a batch says of its completions: of several turns, by what the policy wrote."""

import numpy as np

from infra.runs.rollouts import read_rollouts, write_rollouts
from rl.judging import Judgement
from rl.records import Batch, Problem, Rollouts
from tasks.rollout_batch import RolloutBatch, runs, swapped

FLAGS = [[True, True, False, True], [True], [False, True, False], [True] * 3]
VERSIONS = [[3, 3, 0, 4], [3], [9, 4, 9], [3, 3, 3]]


def made() -> RolloutBatch:
    problems = [Problem("one", "1", "t:1"), Problem("two", "2", "t:2")]
    tokens = [[5] * len(row) for row in FLAGS]
    rollouts = Rollouts.padded(problems, [[1], [2]], tokens, versions=VERSIONS, trained=FLAGS)
    rewards = np.float32([[1, 0], [0, 1]])
    reasons = (("right", "wrong"), ("wrong", "right"))
    return RolloutBatch.of(Batch(rollouts, rewards, reasons), Judgement(rewards, reasons), [0, 1])


def test_rows_say_which_tokens_the_policy_wrote_where_it_did_not_write_all() -> None:
    rows = list(made().rows())
    assert [row["tokens"] for row in rows] == [3, 1, 1, 3]
    assert [row["version"] for row in rows] == [3, 3, 4, 3]  # of its first token
    assert [row.get("trained") for row in rows] == ["0:2 3:4", None, "1:2", None]


def test_rows_are_read_as_they_were_kept() -> None:
    rows = list(made().rows())
    write_rollouts("memory://batch/run", 1, rows)
    assert read_rollouts("memory://batch/run", 1) == rows


def test_lengths_and_swaps_are_those_of_the_policys_tokens() -> None:
    batch = made()
    assert batch.tokens == 8
    assert batch.figures()["completion/tokens_mean"] == 2
    assert swapped(batch.everything.rollouts) == 0.25


def test_runs() -> None:
    assert runs(np.array([True, True, False, True])) == "0:2 3:4"
    assert runs(np.array([False, False])) == ""
    assert runs(np.array([True])) == "0:1"
