import gzip
from collections import Counter
from pathlib import Path

import fsspec
import pyarrow
import pyarrow.parquet
import pytest

from infra.runs.metric_log import MetricLog
from rl.config import MADE, PolicyConfig, ProblemsConfig, VerifierConfig
from rl.learning.optimizer_config import OptimizerConfig
from rl.problems.tables import ProblemError
from rl.records import Instructions, Problem
from rl.verifiers.built_in import arithmetic
from rl.verifiers.spec import VerifierError, VerifierSpec
from tasks.calls.start import check_policy
from tasks.sets.named_set import problem_set_name
from tasks.sets.problem_set import ProblemSet, problems_to_solve
from tasks.sets.problem_set import open_problems as open_sets
from tests.tasks.problem_files import HEADER, csv, jsonl


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
        ("grammar", "grammar"),
    ],
)
def test_a_set_is_named_after_its_file_in_letters_that_a_metric_may_have(path: str, name: str) -> None:
    assert problem_set_name(path) == name
    MetricLog(None).append(0, {f"eval/{name}/pass_at_1": 0.5})  # refuses a name that MLflow would refuse


@pytest.mark.parametrize("path", [*MADE, "sums"])
def test_a_step_s_problems_depend_on_the_seed_and_the_step_alone(path: str, sums: str) -> None:
    path = sums if path == "sums" else path
    first, again, other = (open_problems(path, 5, seed) for seed in (1, 1, 2))
    for step in (3, 0, 7):  # in any order
        assert first.draw(step, 8, 0) == again.draw(step, 8, 0)
    assert prompts(first, 7, 8) == prompts(again, 7, 8) != prompts(other, 7, 8)
    assert prompts(first, 0, 8) != prompts(first, 1, 8)


@pytest.mark.parametrize("path", [*MADE, "sums"])
def test_a_replacement_goes_on_where_the_step_s_first_draw_stopped(path: str, sums: str) -> None:
    problems = open_problems(sums if path == "sums" else path, 5, seed=0)
    assert prompts(problems, 4, 3) + prompts(problems, 4, 6, skip=3) == prompts(problems, 4, 9)


@pytest.mark.parametrize("path", [*MADE, "sums"])
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
    with pytest.raises(
        ProblemError, match=f"cannot hold out {held_out} of 20 distinct prompts: choose --held_out 0 to 19"
    ):
        open_problems(sums, held_out, seed=0)
    assert len(open_problems(sums, 19, seed=0).held_out) == 19


@pytest.mark.parametrize(("rows", "kept"), [(1, 0), (4, 0), (5, 1), (49, 9), (200, 40), (1000, 200), (3000, 200)])
def test_a_small_file_holds_out_a_fifth_where_no_number_is_given(tmp_path: Path, rows: int, kept: int) -> None:
    (tmp_path / "sums.csv").write_text(csv(range(rows)))
    found = open_sets([ProblemsConfig(path=f"{tmp_path}/sums.csv")], VerifierConfig(), None, 0)
    assert len(found.held_out) == kept
    assert len(found.trained) == rows - kept


def test_the_longest_problem_of_a_file_is_looked_at_whichever_step_draws_it(tmp_path: Path) -> None:
    rows = "".join(f"{n} + 1,add 1 to {n},0\n" for n in range(2000))
    (tmp_path / "sums.csv").write_text(f"{HEADER}{rows}1 + 1,{'add 1 to 1 ' * 400},0\n")
    found = open_problems(f"{tmp_path}/sums.csv", 0, seed=0)
    assert max(len(problem.prompt) for problem in found.draw(0, 64, 0)) < 100
    assert "sums.csv:2002" in {problem.source for problem in found.longest()}
    assert len(found.longest()) < 400  # not all of them
    with pytest.raises(ValueError, match=r"range of positions of 1024 .*sums\.csv:2002.*leave it out"):
        check_policy(PolicyConfig(), OptimizerConfig(), found.longest(), 40)
    short = [problem for problem in found.longest() if len(problem.prompt) < 100]
    assert check_policy(PolicyConfig(), OptimizerConfig(), short, 40) == []


def test_one_broken_file_of_a_pattern_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv(range(3)))
    (tmp_path / "b.csv").write_text(f"{HEADER}2 +,add nothing,0\n")
    with pytest.raises(ProblemError, match=r"b\.csv: line 2: python_expression '2 \+' cannot be evaluated"):
        read_problems(f"{tmp_path}/*.csv")


def mixture(tmp_path: Path, sums: str, seed: int = 0, held_out: int = 4) -> ProblemSet:
    questions = jsonl(tmp_path / "questions.jsonl", range(50))
    sets = [
        ProblemsConfig(path=sums, weight=3),
        ProblemsConfig(path=questions, verifier="gsm8k", system="Say it."),
        ProblemsConfig(path="countdown", weight=1),
    ]
    return open_sets(sets, VerifierConfig(seconds=2), held_out, seed)


def test_sets_are_mixed_by_weight_and_a_draw_depends_on_seed_and_step_alone(tmp_path: Path, sums: str) -> None:
    mixed, again, other = (mixture(tmp_path, sums, seed) for seed in (1, 1, 2))
    assert mixed.name == "sums-questions-countdown"
    drawn = {step: mixed.draw(step, 50, 0) for step in range(20)}
    assert {step: again.draw(step, 50, 0) for step in reversed(range(20))} == drawn
    assert other.draw(0, 50, 0) != drawn[0]
    assert mixed.draw(3, 20, 0) + mixed.draw(3, 30, 20) == drawn[3]
    counts = Counter(problem.set for problems in drawn.values() for problem in problems)
    assert counts.total() == 1000
    assert abs(counts["sums"] - 600) < 80  # five standard deviations
    assert abs(counts["questions"] - 200) < 65
    for problems in drawn.values():  # within a set none comes twice before all have come
        questions = [problem.source for problem in problems if problem.set == "questions"]
        assert len(set(questions)) == len(questions)


def test_an_epoch_of_every_set_is_whole_and_sets_of_equal_length_draw_different_rows(tmp_path: Path) -> None:
    paths = [jsonl(tmp_path / f"{name}.jsonl", range(90)) for name in "abc"]
    sets = [ProblemsConfig(path=path, verifier="gsm8k") for path in paths]
    mixed = open_sets(sets, VerifierConfig(), 10, 0, 8)
    drawn: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    steps: dict[int, list[Problem]] = {}
    for step in range(60):
        steps[step] = mixed.draw(step, 8, 0)
        mixed.draw(step, 8, 8)  # what replaces them takes nothing from the epoch
        for problem in steps[step]:
            drawn[problem.set].append(problem.prompt)
    for order in drawn.values():
        assert len(order) > 120
        assert len(set(order[:80])) == 80
    assert drawn["a"][:40] != drawn["b"][:40] != drawn["c"][:40] != drawn["a"][:40]
    resumed = open_sets(sets, VerifierConfig(), 10, 0, 8)
    assert {step: resumed.draw(step, 8, 0) for step in (59, 30, 31)} == {step: steps[step] for step in (59, 30, 31)}
    # two of the same kind that are made are not the same either
    made = open_sets([ProblemsConfig(path="grammar")] * 2, VerifierConfig(), 1, 0, 64).draw(0, 64, 0)
    assert len({problem.prompt for problem in made}) > 60


def test_a_file_is_seen_whole_before_any_of_it_comes_again(tmp_path: Path) -> None:
    problems = open_sets([ProblemsConfig(path=jsonl(tmp_path / "q.jsonl", range(250)), verifier="gsm8k")],
                         VerifierConfig(), 10, 3, 32)  # fmt: skip
    firsts = [problem.prompt for step in range(8) for problem in problems.draw(step, 32, 0)]
    assert len(set(firsts[:240])) == 240
    for step in range(7):
        whole = prompts(problems, step, 80)
        assert len(set(whole)) == 80  # what replaces a problem is not of the same step


def test_each_set_keeps_its_own_problems_out_and_has_its_own_verifier(tmp_path: Path, sums: str) -> None:
    mixed = mixture(tmp_path, sums)
    assert Counter(problem.set for problem in mixed.held_out) == {"sums": 4, "questions": 4, "countdown": 4}
    drawn = {problem.prompt for step in range(20) for problem in mixed.draw(step, 50, 0)}
    assert not drawn & {problem.prompt for problem in mixed.held_out}
    assert {name: spec.name for name, spec in mixed.verifiers.items()} == {
        "sums": "arithmetic",
        "questions": "gsm8k",
        "countdown": "countdown",
    }
    assert {spec.seconds for spec in mixed.verifiers.values()} == {2}
    told = {problem.set: problem.instructions for problem in mixed.held_out}
    assert told["questions"] == Instructions("Say it.", required=True)
    assert told["sums"] == arithmetic.INSTRUCTIONS
    alone = open_problems(sums, 4, seed=0).held_out
    assert [problem.prompt for problem in mixed.held_out[:4]] == [problem.prompt for problem in alone]


@pytest.mark.parametrize(("name", "countdown"), [("gsm8k", "countdown"), ("memory://mine.py:reward", None)])
def test_a_set_made_in_code_is_not_trained_by_a_verifier_that_does_not_read_it(
    tmp_path: Path, name: str, countdown: str | None
) -> None:
    with fsspec.open("memory://mine.py", "w") as file:
        file.write("def reward(problem, completion):\n    return 1\n")
    sets = [ProblemsConfig(path=jsonl(tmp_path / "questions.jsonl", range(40))), ProblemsConfig(path="countdown")]
    mixed = open_sets(sets, VerifierConfig(name=name), 4, 0)
    judges = {"questions": name, "countdown": countdown or name}
    assert {each: spec.name for each, spec in mixed.verifiers.items()} == judges
    made = sets[1].model_copy(update={"verifier": "arithmetic"})  # what its own option says
    assert open_sets([made], VerifierConfig(), 4, 0).verifiers["countdown"].name == "arithmetic"
    if countdown:
        with pytest.raises(VerifierError, match="'gsm8k' judges none of the problems: countdown is made in code and h"):
            open_sets([sets[1]], VerifierConfig(name=name), 4, 0)
    else:
        assert open_sets([sets[1]], VerifierConfig(name=name), 4, 0).verifiers["countdown"].name == name


def test_all_formats_of_a_pattern_are_read_packed_ones_too(tmp_path: Path) -> None:
    rows = {"question": ["p?"], "answer": ["1"]}
    pyarrow.parquet.write_table(pyarrow.table(rows), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"question": "j?", "answer": "2"}\n'))
    (tmp_path / "c.csv").write_text("question,answer\nc?,3\n")
    assert [(p.prompt, p.target, p.source, p.set) for p in read_problems(f"{tmp_path}/*")] == [
        ("p?", "1", "a.parquet:1", "all"),
        ("j?", "2", "b.jsonl.gz:1", "all"),
        ("c?", "3", "c.csv:2", "all"),
    ]


def test_a_verifier_of_the_user_travels_as_text(tmp_path: Path, sums: str) -> None:
    text = "def reward(problem, completion):\n    return 1\n"
    with fsspec.open("memory://code/my_reward.py", "w") as file:
        file.write(text)
    (tmp_path / "free.jsonl").write_text('{"prompt": "go"}\n{"prompt": "on"}\n')
    name = "memory://code/my_reward.py:reward"
    found = open_sets([ProblemsConfig(path=f"{tmp_path}/free.jsonl")], VerifierConfig(name=name, memory_mb=99), 1, 0)
    assert found.verifiers == {"free": VerifierSpec(name=name, seconds=5.0, memory_mb=99, text=text)}
    assert (found.held_out[0].target, found.held_out[0].instructions) == ("", None)
    with pytest.raises(VerifierError, match="no function 'score'; it has reward"):
        open_sets([ProblemsConfig(path=sums)], VerifierConfig(name="memory://code/my_reward.py:score"), 1, 0)


def test_a_target_that_its_verifier_cannot_use_is_refused_with_its_place(tmp_path: Path, sums: str) -> None:
    questions = jsonl(tmp_path / "q.jsonl", range(3))
    with pytest.raises(
        ProblemError, match=r"q\.jsonl: line 1: answer '#### 0' cannot be .* is --verifier gsm8k meant\?"
    ):
        open_problems(questions, 1, 0)
    with pytest.raises(ProblemError, match=r"sums\.csv: line 2: python_expression '0 \+ 1' is not a whole number"):
        open_sets([ProblemsConfig(path=sums)], VerifierConfig(name="countdown"), 1, 0)


def test_a_template_of_the_users_travels_with_its_problems(tmp_path: Path) -> None:
    file = tmp_path / "q.csv"
    file.write_text("question,answer\n" + "".join(f"what is {n}?,{n}\n" for n in range(20)))
    sets = [ProblemsConfig(path=str(file), template="{system}\nQ: {prompt}\nA:")]
    problems = open_sets(sets, VerifierConfig(name="gsm8k"), 4, 0)
    [instructions] = {problem.instructions for problem in problems.held_out}
    assert instructions is not None
    assert instructions.template == "{system}\nQ: {prompt}\nA:"
    assert instructions.system.startswith("Think step by step")
    for wrong in ({"template": "Q:"}, {"template": "{prompt}", "system": "be brief"}):
        with pytest.raises(ValueError, match="template"):
            ProblemsConfig(path=str(file), **wrong)


def test_who_named_no_verifier_hears_which_one_refuses_and_which_others_there_are(tmp_path: Path) -> None:
    file = tmp_path / "capitals.jsonl"
    file.write_text('{"prompt": "Which city is the capital of France?", "answer": "Paris"}\n')
    sets = [ProblemsConfig(path=str(file))]
    said = r"cannot be evaluated .*\(verifier arithmetic, as none was named; others: --verifier gsm8k, math, my_reward"
    with pytest.raises(ProblemError, match=said):
        open_sets(sets, VerifierConfig(), 0, 0)
    with pytest.raises(ProblemError, match=r"brackets are allowed\)$"):
        open_sets(sets, VerifierConfig(name="arithmetic"), 0, 0)
