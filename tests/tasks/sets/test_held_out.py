"""What is held out is not trained on, nor evaluated what was trained on."""

import json
from collections import Counter
from pathlib import Path

import pytest

from rl.config import ProblemsConfig, VerifierConfig
from rl.problems.made import grammar
from rl.problems.rows import normalized, split
from rl.problems.tables import ProblemError
from tasks.sets.problem_set import open_problems as open_sets
from tasks.sets.problem_set import problems_to_solve
from tasks.sets.trained_on import TrainedOn, short_digest
from tests.streams import drawing
from tests.tasks.problem_files import jsonl


def test_what_one_set_keeps_out_another_does_not_train_on(tmp_path: Path) -> None:
    some, same = jsonl(tmp_path / "a.jsonl", range(12)), jsonl(tmp_path / "b.jsonl", range(10))
    sets = [ProblemsConfig(path=path, verifier="gsm8k") for path in (some, same, some)]
    mixed = open_sets(sets, VerifierConfig(), 5, 0)
    assert mixed.name == "a-b-a-2"
    drawn = {problem.prompt for step in range(20) for problem in mixed.draw(step, 20, 0)}
    assert not drawn & {problem.prompt for problem in mixed.held_out}
    tiny = ProblemsConfig(path=jsonl(tmp_path / "tiny.jsonl", range(4)), verifier="gsm8k")
    with pytest.raises(ProblemError, match=r"tiny\.jsonl: cannot hold out 11 of 4 distinct prompts"):
        open_sets([sets[0], tiny], VerifierConfig(), 11, 0)


def test_a_set_that_is_made_and_there_twice_holds_out_other_problems_each_time() -> None:
    sets = [ProblemsConfig(path=path) for path in ("arithmetic", "countdown", "arithmetic")]
    mixed = open_sets(sets, VerifierConfig(), 20, 0)
    assert Counter(problem.set for problem in mixed.held_out) == dict.fromkeys(mixed.verifiers, 20)
    kept = {normalized(problem.prompt) for problem in mixed.held_out if problem.set.startswith("arithmetic")}
    assert len(kept) == 40
    # the first of them are those of one alone, and an evaluation of the run has the same ones
    assert mixed.held_out[:20] == open_sets(sets[:1], VerifierConfig(), 20, 0).held_out
    assert problems_to_solve(sets, VerifierConfig(), None, 0, made=20).held_out == mixed.held_out
    assert not kept & {normalized(problem.prompt) for step in range(20) for problem in mixed.draw(step, 20, 0)}


def variants(path: Path, numbers: range) -> str:
    """Each of the questions three times: as it is, in capitals, and with other blanks."""
    lines = [
        {"question": words, "answer": f"#### {n}"}
        for n in numbers
        for words in (f"what is {n}?", f"What IS {n}?", f"what  is\t{n}?")
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_what_is_held_out_is_not_trained_on_in_other_case_or_with_other_blanks(tmp_path: Path) -> None:
    one, two = variants(tmp_path / "a.jsonl", range(40)), jsonl(tmp_path / "b.jsonl", range(30, 60))
    sets = [ProblemsConfig(path=path, verifier="gsm8k") for path in (one, two)]
    for mixed in (open_sets(sets[:1], VerifierConfig(), 20, 0), open_sets(sets, VerifierConfig(), 20, 0)):
        kept = {normalized(problem.prompt) for problem in mixed.held_out}
        drawn = [problem for step in range(20) for problem in mixed.draw(step, 30, 0)]
        assert not kept & {normalized(problem.prompt) for problem in drawn}
        assert not kept & {normalized(problem.prompt) for problem in mixed.drawn}
        assert len(mixed.drawn) > 20
        rows_of_all = sum(file.rows for file in mixed.files.values())
        assert 0 < mixed.spared == rows_of_all - len(mixed.drawn) - len(mixed.held_out)
    # what is held out, and by what a run knows its files again, are as they were
    alone = open_sets(sets[:1], VerifierConfig(), 20, 0)
    rows = problems_to_solve(sets[:1], VerifierConfig(), 0, 0).held_out
    train, held_out = split(rows, 20)
    assert list(alone.held_out) == held_out
    assert alone.files["a"].digest == TrainedOn.of((train, held_out), train).digest
    with pytest.raises(ProblemError, match=r"a\.jsonl: nothing is left to train on: .*case and blanks"):
        open_sets(sets[:1], VerifierConfig(), 119, 0)


def test_what_a_file_holds_out_is_not_trained_on_where_it_is_made(tmp_path: Path) -> None:
    made = [problem for step in range(5) for problem in drawing(grammar.stream)(0, step, 8)]
    rows = "".join(f'{problem.target},"{problem.prompt.upper()}"\n' for problem in made)
    (tmp_path / "same.csv").write_text(f"python_expression,natural_language\n{rows}")
    sets = [ProblemsConfig(path="grammar"), ProblemsConfig(path=f"{tmp_path}/same.csv")]
    mixed = open_sets(sets, VerifierConfig(), 39, 0, 16)
    kept = {normalized(problem.prompt) for problem in mixed.held_out}
    drawn = [problem for step in range(5) for problem in mixed.draw(step, 16, 0) + mixed.draw(step, 16, 16)]
    assert {problem.set for problem in drawn} == {"grammar", "same"}
    assert not kept & {normalized(problem.prompt) for problem in drawn}


def test_an_evaluation_leaves_out_what_was_trained_on_in_other_case_or_with_other_blanks(tmp_path: Path) -> None:
    path = variants(tmp_path / "a.jsonl", range(40))
    sets = [ProblemsConfig(path=path, verifier="gsm8k")]
    trained = open_sets(sets, VerifierConfig(), 20, 0)
    of_old = frozenset(short_digest(problem.prompt) for problem in trained.drawn)  # runs kept them as they stand
    for told in (trained.trained, of_old):
        solved = problems_to_solve(sets, VerifierConfig(), None, 0, told)
        seen = {normalized(problem.prompt) for problem in trained.drawn}
        assert not seen & {normalized(problem.prompt) for problem in solved.held_out}
        assert {problem.prompt for problem in trained.held_out} <= {problem.prompt for problem in solved.held_out}
        assert solved.left_out == 120 - len(solved.held_out) == len(trained.drawn)


def test_an_evaluation_leaves_out_what_was_trained_on_where_it_is_made_too() -> None:
    made = [ProblemsConfig(path="grammar")]
    first = problems_to_solve(made, VerifierConfig(), None, 0, made=10).held_out
    trained = frozenset(short_digest(normalized(problem.prompt)) for problem in first[:3])
    solved = problems_to_solve(made, VerifierConfig(), None, 0, trained, made=10)
    assert (solved.held_out, solved.left_out) == (first[3:], 3)
    whole = problems_to_solve(made, VerifierConfig(), 0, 0, trained, made=10)
    assert (whole.held_out, whole.left_out) == (first, 0)
