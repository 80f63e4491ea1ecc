"""What an evaluation of a run takes from the run."""

from pathlib import Path
from typing import Any

import pytest

from flows.config import EvalConfig, TrainConfig
from flows.options.reading import read_config
from flows.start.as_trained import Asked, asked_evaluation, asked_of_run
from flows.start.lineage import PROBLEMS, save_problems
from flows.start.runs import Run, without_secrets
from flows.start.trust import remember
from rl.problems.tables import ProblemError
from rl.verifiers.built_in.gsm8k import INSTRUCTIONS
from tasks.sets.problem_set import open_problems

HEAD = "python_expression,natural_language\n"


def given(model: type[Any], **options: str) -> Any:
    named = {key.replace("__", "."): value for key, value in options.items()}
    return read_config(model, file=None, overrides=named, defaults=model is TrainConfig)


@pytest.fixture
def sums(tmp_path: Path) -> str:
    path = tmp_path / "sums.csv"
    path.write_text(HEAD + "".join(f"{n} + 1,add 1 to {n}\n" for n in range(50)))
    return str(path)


def asked(trained: TrainConfig, **options: str) -> Asked:
    return asked_of_run(without_secrets(given(EvalConfig, policy="mine", **options)), "mine", trained)


def test_what_is_not_given_is_as_in_training_and_what_is_given_wins(sums: str) -> None:
    trained = given(
        TrainConfig, problems=sums, problems__system="Be brief.", held_out="7", seed="5", batch__samples="3",
        sampling__max_tokens="333", sampling__temperature="0.6", verifier__seconds="9", policy__dtype="bfloat16",
        policy__device="cpu", policy__engine="http://127.0.0.1:8000",
    )  # fmt: skip
    as_it_was = asked(trained)
    config = as_it_was.config
    assert (config.sampling, config.verifier, config.problems) == (trained.sampling, trained.verifier, trained.problems)
    assert (config.seed, config.samples) == (5, 3)
    assert (config.policy.model, config.policy.dtype, config.policy.device) == ("mine", "bfloat16", "auto")
    assert config.policy.engine == "rlvf"
    assert len(as_it_was.problems.held_out) == 7
    assert not any("was trained with" in note for note in as_it_was.notes)
    folded = asked(trained, sampling__max_tokens="null")  # as a section of Prefect's form sends it
    assert (folded.config.sampling, folded.notes) == (trained.sampling, as_it_was.notes)
    other = asked(trained, sampling__max_tokens="40", samples="8", policy__dtype="float32")
    assert other.config.sampling.max_tokens == 40
    assert other.config.sampling.temperature == 0.6
    assert {note for note in other.notes if "was trained with" in note} == {
        "mine was trained with sampling.max_tokens 333, here 40",
        "mine was trained with samples 3, here 8",
        "mine was trained with policy.dtype bfloat16, here float32",
    }


def test_adapters_are_not_evaluated_by_a_server(sums: str) -> None:
    with pytest.raises(
        ValueError, match=r"^policy\.engine: .* this run has adapters; evaluate what rlvf export --merge"
    ):
        asked(given(TrainConfig, problems=sums, policy__lora="4"), policy__engine="http://127.0.0.1:8000")


def test_all_sets_that_a_run_was_trained_on_are_evaluated_unless_others_are_given(sums: str) -> None:
    trained = given(TrainConfig, problems=sums, mix="[grammar]")
    assert asked(trained).config.sets == trained.sets
    assert asked(trained, verifier__seconds="9").config.sets == trained.sets
    assert asked(trained, problems=sums).config.sets == trained.sets[:1]
    # an option of the first set changes that, and leaves the others
    changed = asked(trained, problems__system="Be brief.")
    assert changed.config.sets == (trained.problems.model_copy(update={"system": "Be brief."}), *trained.mix)
    assert [note for note in changed.notes if "was trained with" in note] == [
        "mine was trained with problems.system None, here Be brief."
    ]
    assert asked(trained, problems__system="Be brief.", mix="[]").config.mix == ()


def test_problems_that_were_trained_on_are_left_out_wherever_they_lie(sums: str, tmp_path: Path) -> None:
    trained = given(TrainConfig, problems=sums, held_out="7", problems__system="Be brief.")
    mine = {problem.prompt for problem in asked(trained).problems.held_out}
    copy = tmp_path / "copy.csv"
    copy.write_text(Path(sums).read_text() + "3 + 3,add 3 and 3\n")
    found = asked(trained, problems=str(copy))
    assert {problem.prompt for problem in found.problems.held_out} == {*mine, "add 3 and 3"}
    assert "8 problems of set copy; 43 that mine trains on are left out (--held_out 0 takes all)" in found.notes
    everything = asked(trained, problems=str(copy), held_out="0")
    assert len(everything.problems.held_out) == 51
    assert "51 problems of set copy: mine was trained on 43 of them" in everything.notes
    assert "20 problems of set sums: mine was trained on 13 of them" in asked(trained, held_out="20").notes
    # a set of the run's keeps its columns and words, by whatever options it is named
    assert asked(trained, problems=sums, mix="[grammar]").config.problems == trained.problems
    # what the run was trained on is not here any more
    Path(sums).unlink()
    assert any("cannot be told" in note for note in asked(trained, problems=str(copy)).notes)
    with pytest.raises(ValueError, match="sums"):
        asked(trained)


def test_a_set_is_the_runs_however_its_path_is_written_and_a_new_file_is_judged_as_all_of_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = '{"q": "how many cans?", "a": "42", "question": "how many?", "answer": "42"}\n'
    for name in ("one", "two", "new"):
        (tmp_path / f"{name}.jsonl").write_text(row.replace("how", f"{name}: how") * 2)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    one = {"problems": "one.jsonl", "problems__prompt": "q", "problems__target": "a", "problems__verifier": "gsm8k"}
    one |= {"problems__system": "End with four hashes.", "held_out": "0"}
    trained = given(TrainConfig, **one)

    def judged(trained: TrainConfig, path: str, **options: str) -> tuple[Any, ...]:
        found = asked(trained, problems=path, **{"held_out": "0", **options})
        [spec] = found.problems.verifiers.values()
        [problem] = {problem.prompt: problem for problem in found.problems.held_out}.values()
        return spec.name, problem.instructions.system if problem.instructions else None, problem.prompt

    for path in ("one.jsonl", "./one.jsonl", f"{tmp_path}/one.jsonl", f"file://{tmp_path}/one.jsonl", "link/one.jsonl"):
        assert judged(trained, path) == ("gsm8k", "End with four hashes.", "one: how many cans?")
    assert judged(trained, "new.jsonl") == ("gsm8k", "End with four hashes.", "new: how many?")
    assert judged(trained, "new.jsonl", verifier="arithmetic")[0] == "arithmetic"  # what is given wins
    assert judged(trained, "new.jsonl", problems__verifier="arithmetic")[:2] == ("arithmetic", "End with four hashes.")
    assert judged(trained, "new.jsonl", problems__system="Shout.")[:2] == ("gsm8k", "Shout.")
    two = "[{path: two.jsonl, verifier: gsm8k, system: Be brief.}]"
    assert judged(given(TrainConfig, **one, mix=two), "new.jsonl") == (
        *("gsm8k", INSTRUCTIONS.system),  # their words differ
        "new: how many?",
    )
    unlike = given(TrainConfig, **one, mix="[{path: two.jsonl, verifier: arithmetic}]")
    assert judged(unlike, "new.jsonl")[0] == "arithmetic"
    assert asked(trained, problems="arithmetic", held_out="3").problems.verifiers["arithmetic"].name == "arithmetic"


COUNTDOWN = '{"prompt": "combine 7, 9 and 5 to obtain 11.", "target": "11", "numbers": [7, 9, 5]}\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cd.jsonl").write_text(COUNTDOWN)
    (tmp_path / "mine.py").write_text("def reward(problem, completion):\n    return 0.5\n")
    for name in ("gs", "gs2", "other"):
        (tmp_path / f"{name}.jsonl").write_text('{"question": "how many cans?", "answer": "42"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


GSM8K = {"verifier": "gsm8k"}
OF_THE_SET = {"problems__verifier": "gsm8k"}


@pytest.mark.parametrize(
    ("trained", "evaluated", "judges"),
    [
        # what is made in code has its own, whichever way the run names its verifier
        ({"problems": "gs.jsonl", **GSM8K}, {"problems": "countdown"}, {"countdown": "countdown"}),
        ({"problems": "gs.jsonl", **OF_THE_SET}, {"problems": "countdown"}, {"countdown": "countdown"}),
        ({"problems": "gs.jsonl", **GSM8K}, {"problems": "grammar"}, {"grammar": "arithmetic"}),
        ({"problems": "gs.jsonl", "verifier": "mine.py:reward"}, {"problems": "grammar"}, {"grammar": "arithmetic"}),
        # another file has what judged the run's sets, by its name
        ({"problems": "countdown"}, {"problems": "cd.jsonl"}, {"cd": "countdown"}),
        ({"problems": "countdown"}, {"problems": "cd.jsonl", "verifier": "arithmetic"}, {"cd": "arithmetic"}),
        ({"problems": "gs.jsonl", "mix": "[countdown]", **GSM8K}, {"problems": "other.jsonl"}, {"other": "gsm8k"}),
        ({"problems": "gs.jsonl", "mix": "[countdown]", **GSM8K}, {}, {"gs": "gsm8k", "countdown": "countdown"}),
        # what an evaluation names judges its files
        ({"problems": "gs2.jsonl", **OF_THE_SET}, {"verifier": "arithmetic"}, {"gs2": "arithmetic"}),
        ({"problems": "gs2.jsonl", **GSM8K}, {"verifier": "arithmetic"}, {"gs2": "arithmetic"}),
        (
            {"problems": "gs.jsonl", "mix": "[{path: gs2.jsonl, verifier: gsm8k}, countdown]"}, {"verifier": "math"},
            {"gs": "math", "gs2": "math", "countdown": "countdown"},
        ),
        ({"problems": "gs.jsonl", **GSM8K}, {"problems": "countdown", "verifier": "mine.py:reward"},
         {"countdown": "mine.py:reward"}),
        ({"problems": "gs.jsonl", **GSM8K}, {"problems": "countdown", "problems__verifier": "math"},
         {"countdown": "math"}),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("folder")
def test_each_set_of_an_evaluation_has_a_verifier_that_fits_it(
    trained: dict[str, str], evaluated: dict[str, str], judges: dict[str, str]
) -> None:
    found = asked(given(TrainConfig, held_out="0", **trained), held_out="0", **evaluated)
    assert {name: spec.name for name, spec in found.problems.verifiers.items()} == judges
    both = ", ".join(f"{judge} ({name})" for name, judge in judges.items())
    said = both if len(set(judges.values())) > 1 else next(iter(judges.values()))
    assert any(note.startswith(f"mine: judged by {said}") for note in found.notes) or len(judges) > 2


@pytest.mark.usefixtures("folder")
def test_another_verifier_of_an_evaluation_is_said_or_refused() -> None:
    own = {"problems": "gs2.jsonl", "held_out": "0", "mix": "[{path: gs.jsonl, verifier: gsm8k}]", **OF_THE_SET}
    notes = asked(given(TrainConfig, **own), held_out="0", verifier="arithmetic").notes
    assert "mine was trained with problems.verifier gsm8k, here arithmetic" in notes
    assert "mine was trained with mix[0].verifier gsm8k, here arithmetic" in notes
    with pytest.raises(ValueError, match=r"'gsm8k' judges none of the problems: countdown is made .*--problems\.verif"):
        asked(given(TrainConfig, problems="countdown"), verifier="gsm8k")


def test_problems_that_were_trained_on_are_left_out_even_if_the_file_was_edited(tmp_path: Path) -> None:
    file, uri = tmp_path / "sums.csv", str(tmp_path / "mine")
    rows = [f"{n} + 1,add 1 to {n}\n" for n in range(400)]
    file.write_text(HEAD + "".join(rows[:300]))
    run = Run(uri, given(TrainConfig, problems=str(file)), resumed=False)
    begun = open_problems(run.config.sets, run.config.verifier, run.config.held_out, run.config.seed)
    save_problems(run.uri, begun)
    run.save_config()
    trained = {problem.prompt for problem in begun.draw(0, 240, 0)}
    held_out = {problem.prompt for problem in begun.held_out}
    new = {f"add 1 to {n}" for n in range(300, 400)}
    assert (len(trained), len(held_out)) == (240, 60)

    def evaluated(**options: str) -> Asked:
        remember(run)  # trust is not what this is about
        return asked_evaluation(given(EvalConfig, policy=uri, **options))

    assert {problem.prompt for problem in evaluated().problems.held_out} == held_out
    file.write_text(HEAD + "".join(rows))
    grown = evaluated()
    assert {problem.prompt for problem in grown.problems.held_out} == held_out | new
    assert "160 problems of set sums; 240 that mine trains on are left out (--held_out 0 takes all)" in grown.notes
    assert "400 problems of set sums: mine was trained on 240 of them" in evaluated(held_out="0").notes
    result = asked_evaluation(given(EvalConfig, policy=f"{uri}/model"))  # the run's, by its folder
    assert (result.problems.held_out, result.config.policy.model) == (grown.problems.held_out, f"{uri}/model")
    copy = file.rename(tmp_path / "copy.csv")  # and where the file is gone
    assert {problem.prompt for problem in evaluated(problems=str(copy)).problems.held_out} == held_out | new
    (tmp_path / "mine" / PROBLEMS).unlink()  # a run of an older version
    copy.rename(file)
    assert len(evaluated().problems.held_out) == 80


def test_a_run_that_held_nothing_out_says_what_to_do(sums: str) -> None:
    trained = given(TrainConfig, problems=sums, held_out="0")
    with pytest.raises(ProblemError, match=r"trained on all 50 problems; give others by --problems, or --held_out 0"):
        asked(trained)
    assert len(asked(trained, held_out="0").problems.held_out) == 50
    assert len(asked(trained, problems="grammar").problems.held_out) == 200
