"""What was trained on before: by the run whose model a run, or an evaluation, begins with."""

import json
from dataclasses import replace
from pathlib import Path

from flows.config import EvalConfig, TrainConfig
from flows.finetune_config import SftConfig
from flows.options.reading import read_config
from flows.run.opened import Opened
from flows.start.as_trained import asked_evaluation
from flows.start.finetunes import new_finetune
from flows.start.lineage import (
    note_on_lineage,
    notes_on_held_out,
    notes_on_prompts,
    save_problems,
    saved_before,
    trained_before,
)
from flows.start.runs import Run, new_run
from flows.start.trust import remember
from rl.config import PolicyConfig
from rl.problems.rows import asked
from tasks.sets.example_set import open_examples
from tasks.sets.problem_set import open_problems


def sums(folder: Path, name: str, *numbers: int) -> str:
    file = folder / f"{name}.csv"
    file.write_text("python_expression,natural_language\n" + "".join(f"{n} + 1,add 1 to {n}\n" for n in numbers))
    return str(file)


def begun(folder: Path, name: str, problems: str, **options: str) -> Run:
    """A run as it lies there once it has begun."""
    config = read_config(TrainConfig, file=None, overrides={"problems": problems, "run": name, **options})
    run = new_run(config, str(folder))
    save_problems(run.uri, Opened.of(run).problems)
    run.save_config()
    remember(run)
    return run


def left_out(model: str, problems: str) -> tuple[set[str], tuple[str, ...]]:
    """The prompts that an evaluation keeps of these problems, and its notes."""
    found = asked_evaluation(read_config(EvalConfig, file=None, overrides={"policy": model, "problems": problems}))
    return {asked(each) for each in found.problems.held_out}, found.notes


def test_what_a_run_before_was_trained_on_measures_nothing(tmp_path: Path) -> None:
    many, few = sums(tmp_path, "many", *range(400)), sums(tmp_path, "few", *range(100, 160))
    first = begun(tmp_path, "first", many, held_out="20")
    kept = {asked(each) for each in Opened.of(first).problems.held_out}
    second = begun(tmp_path, "second", few, policy=f"{first.uri}/model")
    third = begun(tmp_path, "third", sums(tmp_path, "others", *range(500, 520)), policy=f"{second.uri}/model")
    assert saved_before(third.uri) >= trained_before(f"{first.uri}/model") == saved_before(second.uri)
    of_second = Opened.of(second).problems
    seen = sum(asked(each) not in kept for each in of_second.held_out)
    assert 0 < seen <= len(of_second.held_out) == 12
    line = f"{seen} of the 12 that are held out are among those that {first.uri}/model was trained on"
    assert notes_on_prompts(second.config.policy.model, of_second) == [line]
    trained = {asked(each) for each in of_second.drawn}
    for run, also in ((first, set()), (second, trained), (third, trained)):
        prompts, notes = left_out(run.uri, many)
        assert prompts == kept - also
        before = ", or what it began from," if also else ""
        assert any(f"{400 - len(prompts)} that {run.name}{before} trains on are left out" in note for note in notes)
    # it goes on with what it knew when it began, whatever has become of the first
    (Path(first.uri) / "problems.json").unlink()
    assert len(saved_before(second.uri)) == 380


def test_examples_that_a_model_has_learned_measure_nothing(tmp_path: Path) -> None:
    shown = tmp_path / "shown.jsonl"
    shown.write_text(
        "".join(json.dumps({"prompt": f"add 1 to {n}", "completion": f"{n} + 1"}) + "\n" for n in range(50))
    )
    config = read_config(SftConfig, file=None, overrides={"problems": str(shown), "run": "shown"})
    tuned = new_finetune(config, str(tmp_path))
    examples = open_examples(tuned.config.problems, None)
    tuned.save(examples)
    again = replace(
        tuned, resumed=True, config=tuned.config.model_copy(update={"policy": PolicyConfig(model="gone/model")})
    )
    again.save(examples)  # as it goes on
    model = f"{tuned.uri}/model"
    tuned.refuse_other_examples(examples)
    all_of_them = sums(tmp_path, "all", *range(50))
    prompts, notes = left_out(model, all_of_them)
    assert prompts == {each.prompt for each in examples.held_out}
    assert notes == (f"{50 - len(prompts)} that {model} was trained on are left out (--held_out 0 takes all)",)
    assert note_on_lineage(model, examples.train, trained_before(model)).startswith("40 of the 40 that are held out")
    assert note_on_lineage(model, examples.held_out, trained_before(model)) == ""


def test_a_run_that_begins_anew_where_one_had_hardly_begun_keeps_its_own_examples(tmp_path: Path) -> None:
    (file := tmp_path / "shown.jsonl").write_text('{"prompt": "a", "completion": "1"}\n')
    config = read_config(SftConfig, file=None, overrides={"problems": str(file), "held_out": "0", "run": "shown"})
    tuned = new_finetune(config, str(tmp_path))
    tuned.save(open_examples(tuned.config.problems, 0))
    file.write_text('{"prompt": "b", "completion": "2"}\n')
    tuned.save(others := open_examples(tuned.config.problems, 0))
    replace(tuned, resumed=True).refuse_other_examples(others)


def test_a_model_of_no_run_was_trained_on_nothing_that_is_known(tmp_path: Path) -> None:
    for model in ("tiny", "Qwen/Qwen3-0.6B", "someone/model", str(tmp_path / "model"), "model"):
        assert trained_before(model) == frozenset()


def test_of_too_few_prompts_to_hold_one_out_it_is_said_why(tmp_path: Path) -> None:
    def said(rows: int, held_out: int | None = None) -> list[str]:
        file = tmp_path / "few.csv"
        file.write_text("problem,answer\n" + "".join(f"add 1 to {row},{row + 1}\n" for row in range(rows)))
        config = read_config(TrainConfig, file=None, overrides={"problems": str(file)})
        return notes_on_held_out(held_out, open_problems(config.sets, config.verifier, held_out, seed=0))

    (line,) = said(4)
    assert line == (
        "few: 4 prompts, none of which is held out to evaluate on: a fifth of them, rounded down, is none; --held_out "
        "1 holds one out"
    )
    assert said(1) == ["few: 1 prompt, which is trained on, and none to hold out and evaluate on; give more"]
    assert said(4, 1) == said(5) == []
    assert said(4, 0) == ["no problems are held out of training, so there is no evaluation on such"]
