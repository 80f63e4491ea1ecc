import gzip
from pathlib import Path

import fsspec
import pytest

from infra.metric_log import MetricLog
from rl.config import COUNTDOWN, GRAMMAR, ProblemsConfig, VerifierConfig
from rl.records import Problem
from rl.tables import ProblemError
from tasks.problem_set import ProblemSet, problem_set_name, problems_to_solve
from tasks.problem_set import open_problems as open_sets

HEADER = "python_expression,natural_language,level\n"


def csv(numbers: range) -> str:
    return HEADER + "".join(f"{n} + 1,add 1 to {n},{n % 3}\n" for n in numbers)


def open_problems(path: str, held_out: int, seed: int) -> ProblemSet:
    return open_sets([ProblemsConfig(path=path)], VerifierConfig(), held_out, seed)


def read_problems(path: str) -> tuple[Problem, ...]:
    return problems_to_solve([ProblemsConfig(path=path)], VerifierConfig(), 0, 0).held_out


@pytest.fixture
def sums(tmp_path: Path) -> str:
    path = tmp_path / "sums.csv"
    path.write_text(csv(range(20)))
    return str(path)


def prompts(problems: ProblemSet, step: int, count: int, skip: int = 0) -> list[str]:
    return [problem.prompt for problem in problems.draw(step, count, skip)]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("math_1k.csv", "math_1k"),
        ("/data/of mine/math.csv.gz", "math"),
        ("s3://bucket/folder/part-*.csv", "part-all"),
        ("s3://bucket/*.csv.gz", "all"),
        ("memory://sums.csv", "sums"),
        ("part-[0-9]?.csv", "part-0-9"),
        ("sums (1).csv", "sums-1"),
        ("größer.csv", "größer"),
        (".csv", "problems"),
        (GRAMMAR, GRAMMAR),
    ],
)
def test_a_set_is_named_after_its_file_in_letters_that_a_metric_may_have(path: str, name: str) -> None:
    assert problem_set_name(path) == name
    MetricLog(None).append(0, {f"eval/{name}/pass_at_1": 0.5})  # refuses a name that MLflow would refuse


@pytest.mark.parametrize("path", [GRAMMAR, COUNTDOWN, "sums"])
def test_a_step_s_problems_depend_on_the_seed_and_the_step_alone(path: str, sums: str) -> None:
    path = sums if path == "sums" else path
    first, again, other = (open_problems(path, 5, seed) for seed in (1, 1, 2))
    for step in (3, 0, 7):  # in any order
        assert first.draw(step, 8, 0) == again.draw(step, 8, 0)
    assert prompts(first, 7, 8) == prompts(again, 7, 8) != prompts(other, 7, 8)
    assert prompts(first, 0, 8) != prompts(first, 1, 8)


@pytest.mark.parametrize("path", [GRAMMAR, COUNTDOWN, "sums"])
def test_a_refill_goes_on_where_the_step_s_first_draw_stopped(path: str, sums: str) -> None:
    problems = open_problems(sums if path == "sums" else path, 5, seed=0)
    assert prompts(problems, 4, 3) + prompts(problems, 4, 6, skip=3) == prompts(problems, 4, 9)


@pytest.mark.parametrize("path", [GRAMMAR, COUNTDOWN, "sums"])
def test_what_is_held_out_is_the_same_for_every_seed_and_never_trained_on(path: str, sums: str) -> None:
    path = sums if path == "sums" else path
    one, two = open_problems(path, 6, seed=0), open_problems(path, 6, seed=99)
    assert one.held_out == two.held_out
    assert len({problem.prompt for problem in one.held_out}) == 6
    drawn = {prompt for problems in (one, two) for step in range(20) for prompt in prompts(problems, step, 32)}
    assert not drawn & {problem.prompt for problem in one.held_out}


def test_all_files_of_a_pattern_are_read_packed_ones_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv(range(3)))
    with gzip.open(tmp_path / "b.csv.gz", "wt") as packed:
        packed.write(csv(range(3, 5)))
    found = read_problems(f"{tmp_path}/*.csv*")
    assert [problem.target for problem in found] == [f"{n} + 1" for n in range(5)]
    assert [problem.source for problem in found] == ["a.csv:2", "a.csv:3", "a.csv:4", "b.csv.gz:2", "b.csv.gz:3"]
    assert found[4].extra == {"level": "1"}


def test_another_store_serves_as_well() -> None:
    with fsspec.open("memory://sets/few.csv", "w") as file:
        file.write(csv(range(4)))
    problems = open_problems("memory://sets/few.csv", 1, seed=0)
    assert problems.name == "few"
    assert len(set(prompts(problems, 0, 3))) == 3


@pytest.mark.parametrize("held_out", [20, 21, 1000])
def test_something_must_be_left_to_train_on(sums: str, held_out: int) -> None:
    with pytest.raises(ProblemError, match=f"cannot hold out {held_out} of 20 distinct prompts: choose 0 to 19"):
        open_problems(sums, held_out, seed=0)
    assert len(open_problems(sums, 19, seed=0).held_out) == 19


def test_one_broken_file_of_a_pattern_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv(range(3)))
    (tmp_path / "b.csv").write_text(f"{HEADER}2 +,add nothing,0\n")
    with pytest.raises(ProblemError, match=r"b\.csv: line 2: python_expression '2 \+' cannot be evaluated"):
        read_problems(f"{tmp_path}/*.csv")
