"""What a batch says of its completions: of several turns, by what the policy wrote."""

import numpy as np
import pytest

from infra.runs.rollouts import read_rollouts, write_rollouts
from rl.environments.episode import Episode, Outcome
from rl.environments.turn import ToolCall
from rl.judging import Judgement
from rl.records import Batch, Problem, Rollouts
from tasks.batch.rollout_batch import RolloutBatch, episode_figures, runs, swapped, turns_of

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


def test_rewards_of_turns_are_means_over_the_episodes_that_have_them() -> None:
    def played(*rewards: float) -> Episode:
        episode = Episode("k", Problem("", "", "t:0", played=True), "s", Outcome())
        for reward in rewards:
            episode = episode.after(
                (ToolCall("f", {}), ToolCall("g", {})), Outcome(("a", "b"), reward, refused=1, seconds=0.5)
            )
        return episode

    of_one_turn = Episode("k", Problem("", "", "t:1")).saying("so")
    episodes = [played(1, 0.5), of_one_turn, played(0)]
    turns = turns_of(episodes)
    assert turns["turns"].tolist() == pytest.approx([2, np.nan, 1], nan_ok=True)
    assert turns["refused_calls"].tolist() == pytest.approx([2, np.nan, 1], nan_ok=True)
    assert turns_of([]) == {}
    figures = episode_figures(episodes)
    assert figures["reward/turn/1"] == 0.5
    assert figures["reward/turn/2"] == 0.5
    assert "reward/turn/3" not in figures
    assert {name: figures[name] for name in ("turns/mean", "tools/calls", "tools/errors", "tools/seconds")} == {
        "turns/mean": 1.5, "tools/calls": 3, "tools/errors": 0.5, "tools/seconds": 0.5,
    }  # fmt: skip
    assert not any(name.startswith("reward/turn") for name in episode_figures([played(0, 0), played(0)]))
    assert episode_figures([of_one_turn]) == {}
    assert episode_figures([]) == {}


def test_a_conversation_is_what_was_said_and_observed() -> None:
    episode = Episode("k", Problem("", "", "t:0")).saying("f()").after((ToolCall("f", {}),), Outcome(("a", "b")))
    episode = episode.saying("so").after("so", Outcome(("c",))).saying("and th")
    assert [(of["role"], of["content"]) for of in episode.messages] == [
        ("assistant", "f()"), ("tool", "a"), ("tool", "b"), ("assistant", "so"), ("user", "c"), ("assistant", "and th"),
    ]  # fmt: skip
