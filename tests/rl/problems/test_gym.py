"""Problems of reasoning-gym: made again from what travels with them, on one side each, judged by their own check."""

import sys
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("reasoning_gym", reason="needs reasoning-gym: install the extra 'reasoning-gym'")

from rl.config import ProblemsConfig, VerifierConfig
from rl.problems import gym
from rl.problems.made import stream_of
from rl.problems.rows import normalized
from rl.problems.tables import ProblemError
from rl.records import Problem
from rl.verifiers.built_in import reasoning_gym
from rl.verifiers.opened import opened
from rl.verifiers.reading.gym import data_set, reward
from rl.verifiers.spec import VerifierError, VerifierSpec
from tasks.sets.problem_set import open_problems, problems_to_solve

SLOW = {"futoshiki", "knight_swap", "puzzle24", "sokoban", "zebra_puzzles"}  # 0.1 to 0.7 s a problem
LENIENT = {"game_of_life_halting"}  # takes all that does not say True for False
NO_ORACLE = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}  # whose answers are many


def some(task: str, count: int, seed: int = 0, step: int = 0, side: gym.Side = "train") -> list[Problem]:
    return list(islice(stream_of(f"reasoning-gym:{task}")(seed, step, side), count))


def test_every_task_makes_problems_that_it_finds_again_and_that_its_own_answers_solve() -> None:
    assert len(gym.tasks()) > 100
    for task in set(gym.tasks()) - SLOW:
        (problem,) = some(task, 1)
        assert bool(problem.target) == (task not in NO_ORACLE), task
        reasoning_gym.check(problem)
        data_set.cache_clear()  # another machine
        if task not in NO_ORACLE:
            assert reward(problem, f"so <answer>{problem.target}</answer>") == (1.0, "right"), task
        assert reward(problem, "<answer>\n</answer>") == (0.0, "no_answer")
        worth, reason = reward(problem, "<answer>no idea</answer>")
        assert 0 <= worth < 1 + (task in LENIENT), task
        assert reason in ("wrong_value", "in_part", "unreadable") or task in LENIENT


def test_a_step_is_a_function_of_seed_and_step_and_shares_no_prompt_with_what_is_held_out() -> None:
    first = some("leg_counting", 40)
    data_set.cache_clear()
    assert some("leg_counting", 40) == first
    assert some("leg_counting", 40, step=1) != first != some("leg_counting", 40, seed=1)
    held_out = {normalized(each.prompt) for each in some("leg_counting", 200, side="held_out")}
    assert len(held_out) == 200
    drawn = {normalized(each.prompt) for step in range(3) for each in some("leg_counting", 300, step=step)}
    assert drawn.isdisjoint(held_out)


def test_a_task_with_few_problems_has_them_again_in_training_once_all_were_there() -> None:
    prompts = [each.prompt for each in some("coin_flip", 500)]
    different = len(set(prompts))
    assert 2 * different < 500
    assert len(set(prompts[:different])) == len(set(prompts[different : 2 * different])) == different


def test_a_task_with_few_problems_to_hold_out_says_so() -> None:
    with pytest.raises(ProblemError, match=r"reasoning-gym:coin_flip: has no more than \d+ .*smaller --held_out"):
        some("coin_flip", 2000, side="held_out")


@pytest.mark.parametrize(
    ("task", "words"),
    [("leg_countin", "did you mean leg_counting"), ("", "there are ab, acre"), ("composite", "no such task")],
)
def test_a_task_that_is_not_there_is_one_line_with_the_nearest(task: str, words: str) -> None:
    with pytest.raises(ProblemError, match=words) as said:
        stream_of(f"reasoning-gym:{task}")
    assert "\n" not in str(said.value)


def test_without_the_package_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl.problems.gym.find_spec", lambda _: None)
    monkeypatch.setattr("rl.verifiers.spec.find_spec", lambda _: None)
    with pytest.raises(ProblemError, match=r"pip install 'rlvf\[reasoning-gym\]'"):
        stream_of("reasoning-gym:gcd")
    with pytest.raises(VerifierError, match=r"pip install 'rlvf\[reasoning_gym\]'"):  # the same to pip
        open_problems((ProblemsConfig(path="reasoning-gym:gcd"),), VerifierConfig(), 4, 0)


def test_a_part_of_the_reward_is_given_for_a_part_of_the_answer() -> None:
    problem = next(each for each in some("word_sorting", 50) if each.target.count(",") > 3)
    first, *others = problem.target.split(",")
    worth, reason = reward(problem, f"<answer>{','.join([*others, first])}</answer>")
    assert (0 < worth < 1, reason) == (True, "in_part")


def test_the_last_answer_counts_or_else_the_whole() -> None:
    (problem,) = some("gcd", 1)
    right, wrong = problem.target, str(int(problem.target) + 1)
    assert reward(problem, f"<answer>{wrong}</answer> no, <answer>{right}</answer>")[0] == 1
    assert reward(problem, f"<think>{wrong}</think>\n{right}\n")[0] == 1
    assert reward(problem, f"it is {right}")[0] < 1


def test_a_problem_that_is_made_otherwise_here_is_no_reward_of_0() -> None:
    (problem,) = some("gcd", 1)
    with pytest.raises(ValueError, match="same version"):
        reward(Problem("another", problem.target, problem.source, problem.extra), problem.target)
    with pytest.raises(ValueError, match="reasoning-gym:TASK"):
        reasoning_gym.check(Problem("p", "t", "mine.jsonl:1", {"task": "gcd"}))


def test_a_check_that_does_not_work_at_all_is_no_reward_of_0(monkeypatch: pytest.MonkeyPatch) -> None:
    (problem,) = some("prime_factorization", 1)
    assert reward(problem, "no idea") == (0.0, "unreadable")

    def lacking(*_: object) -> float:
        raise FileNotFoundError("words.txt")

    monkeypatch.setattr(type(data_set("prime_factorization", problem.extra["seed"])), "score_answer", lacking)
    with pytest.raises(FileNotFoundError):
        reward(problem, problem.target)


def test_it_judges_in_a_process_that_can_be_killed() -> None:
    spec = VerifierSpec(name="reasoning_gym", seconds=60)
    (problem,) = some("spell_backward", 1)
    verifier = opened(spec)
    try:
        right, wrong = verifier.judge([problem] * 2, [f"<answer>{problem.target}</answer>", "<answer>q</answer>"])
    finally:
        verifier.close()
    assert (right.reward, right.reason, right.error) == (1.0, "right", "")
    assert wrong.reward < 1
    assert not wrong.error
    assert "reasoning_gym" in sys.modules  # here it is for making problems


def test_sets_are_mixed_as_others_are_and_a_set_of_a_file_has_its_own_verifier(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text("".join(f'{{"prompt": "add {n} and 1.", "target": "{n} + 1"}}\n' for n in range(20)))
    sets = tuple(ProblemsConfig(path=path) for path in ("reasoning-gym:gcd", "reasoning-gym:lcm", str(file)))
    problems = open_problems(sets, VerifierConfig(), 3, 0)
    assert {name: spec.name for name, spec in problems.verifiers.items()} == {
        "reasoning-gym-gcd": "reasoning_gym",
        "reasoning-gym-lcm": "reasoning_gym",
        "q": "arithmetic",
    }
    assert len(problems.held_out) == 9
    drawn = problems.draw(0, 60, 0)
    assert {each.set for each in drawn} == set(problems.verifiers)
    for each in drawn:
        if each.set != "q":
            assert each.instructions is not None
            assert "<answer>" in each.instructions.system
    found = problems_to_solve(sets[:1], VerifierConfig(), None, 0, made=5)
    assert len(found.held_out) == 5
