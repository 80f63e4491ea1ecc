from fractions import Fraction
from itertools import permutations

from rl.arithmetic import evaluate
from rl.problems.made.countdown import HELD_OUT_SHARE, TARGETS, is_held_out, stream
from rl.records import Problem
from rl.verifiers.built_in.countdown import check
from tests.streams import drawing

draw = drawing(stream)


def key(problem: Problem) -> tuple[tuple[int, ...], str]:
    return tuple(sorted(problem.extra["numbers"])), problem.target


def reachable(numbers: list[Fraction], target: Fraction) -> bool:
    """By trying every way to join two of the numbers."""
    if len(numbers) == 1:
        return numbers[0] == target
    for first, second, *rest in permutations(numbers):
        joined = [first + second, first - second, first * second] + ([first / second] if second else [])
        if any(reachable([value, *rest], target) for value in joined):
            return True
    return False


def test_every_problem_can_be_solved_and_says_what_it_wants() -> None:
    for problem in draw(3, 1, 40):
        check(problem)
        numbers = problem.extra["numbers"]
        assert int(problem.target) in TARGETS
        assert reachable([Fraction(n) for n in numbers], evaluate(problem.target))
        assert all(f"{n}" in problem.prompt for n in [*numbers, problem.target])


def test_problems_depend_on_seed_and_step_alone_and_a_draw_goes_on() -> None:
    assert draw(1, 2, 5) + draw(1, 2, 5, skip=5) == draw(1, 2, 10)
    firsts = {draw(seed, step, 1)[0].prompt for seed in range(5) for step in range(5)}
    assert len(firsts) > 20


def test_what_is_held_out_is_never_trained_on_in_any_order_of_its_numbers() -> None:
    train = {key(problem) for step in range(20) for problem in draw(0, step, 40)}
    held_out = {key(problem) for problem in draw(7, 0, 100, side="held_out")}
    assert not train & held_out
    assert len(held_out) > 90
    assert is_held_out([1, 2, 3], 6) == is_held_out([3, 1, 2], 6)
    share = sum(is_held_out([a, b], 7) for a in range(60) for b in range(a, 60)) / 1830
    assert abs(share - 1 / HELD_OUT_SHARE) < 0.03
