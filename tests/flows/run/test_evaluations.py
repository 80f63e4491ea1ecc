"""What a run says of its policy while it trains, and which version it keeps as the best."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.commands.train import RESULTS
from flows.config import TrainConfig
from flows.options.reading import OptionError, read_config
from flows.report.html import write_report
from flows.report.summary import summary
from flows.run.plans import plans, problems_to_check
from flows.start.runs import Run
from infra.dispatch.dispatch import Dispatch
from infra.runs.checkpoints import best_version
from infra.runs.metric_log import read_metrics
from infra.runs.record import read_record
from infra.storage import store
from rl.problems.tables import ProblemError
from tasks.sets.problem_set import open_problems

GRADED = """
def reward(problem, completion):
    return 0.9 / (1 + len(completion) / 10)  # never 1, and better for what is short
"""
FIGURES = {"reward", "reward_sampled", "pass_at_1", "sampled", "pass_at_k", "error_rate"}


def configured(**options: str) -> TrainConfig:
    return read_config(TrainConfig, file=None, overrides={key.replace("__", "."): of for key, of in options.items()})


@pytest.mark.slow
def test_several_sets_are_evaluated_each_at_its_own_pace_and_the_best_version_is_kept(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "graded.py").write_text(GRADED)
    (tmp_path / "short.jsonl").write_text('{"prompt": "add 1 and 2 and 3"}\n{"prompt": "add 2 and 2 and 3"}\n')
    short = f"{{path: {tmp_path}/short.jsonl, verifier: '{tmp_path}/graded.py:reward', samples: 2}}"
    options = {
        "optimizer__lr": "1e-3",
        "checkpoint__keep_best": "true",
        "evals": f"[{{path: held_out, every: 2}}, {short}, {{path: grammar, limit: 3, every: 3}}]",
    }
    run = Path(lab.train(steps="3", **options).run)
    first = best_version(str(run))
    result = lab.train(resume=str(run), run=str(run), steps="4", **options)
    for name, steps in {"": [0, 2, 3, 4], "short/": [0, 3, 4], "grammar/": [0, 3, 4]}.items():
        for figure in FIGURES:
            assert list(lab.metrics(run, f"eval/{name}{figure}")) == steps, (name, figure)
    assert set(lab.metrics(run, "eval/short/pass_at_1").values()) == {0}
    assert 0 < min(lab.metrics(run, "eval/short/reward").values()) < 0.9
    # the best one so far, across sessions, and apart from the checkpoints that are pruned
    rewards = lab.metrics(run, "eval/reward_sampled")
    best = max(rewards, key=lambda step: (rewards[step], -step))
    assert result.best == best_version(str(run))
    assert (result.best.step, result.best.reward) == (best, rewards[best])
    assert first is not None
    assert first.step == max(list(rewards)[:3], key=lambda step: (rewards[step], -step))
    with store.read_folder(str(run / "model-best")) as folder:
        assert (folder.path / "model.safetensors").exists()
    assert (result.reward_before, result.reward_after) == (
        lab.metrics(run, "eval/reward")[0],
        lab.metrics(run, "eval/reward")[4],
    )


@pytest.mark.slow
def test_a_graded_reward_is_seen_to_change_and_nothing_is_evaluated_without_held_out_problems(
    lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "graded.py").write_text(GRADED)
    result = lab.train(steps="2", verifier=f"{tmp_path}/graded.py:reward")
    assert result.pass_rate_before == result.sampled_after == 0
    for name in ("reward_before", "reward_after", "reward_sampled_before", "reward_sampled_after"):
        assert 0 < getattr(result, name) < 0.9
        assert name in RESULTS  # of what --json prints
    run = Run(result.run, configured(), resumed=True)
    assert f"reward      {result.reward_before:.3f} → {result.reward_after:.3f} greedy" in summary(run, result, 1.0)
    capsys.readouterr()
    result = lab.train(steps="1", held_out="0")
    assert result.reward_before is result.pass_rate_after is None
    assert "no problems are held out of training" in capsys.readouterr().err
    assert "not evaluated: no problems are held out" in summary(run, result, 1.0)
    assert "eval/" not in (Path(result.run) / "metrics.jsonl").read_text()


def test_what_is_evaluated_on_is_never_trained_on(tmp_path: Path) -> None:
    rows = [f"{n} + 1,add 1 to {n}\n" for n in range(100)]
    head = "python_expression,natural_language\n"
    (tmp_path / "sums.csv").write_text(head + "".join(rows))
    (tmp_path / "more.csv").write_text(head + "".join(rows) + "9 + 9,add 9 and 9\n")
    config = configured(
        problems=f"{tmp_path}/sums.csv", evals=f"[{{path: {tmp_path}/more.csv, every: 5}}, {{path: grammar}}]"
    )
    problems = open_problems(config.sets, config.verifier, config.held_out, 0)
    assert len(problems.held_out) == 20
    more, made, held_out = plans(config, problems)
    assert [plan.name for plan in (more, made, held_out)] == ["more", "grammar", ""]
    assert {problem.prompt for problem in more.problems.held_out} == {
        "add 9 and 9", *(problem.prompt for problem in problems.held_out),
    }  # fmt: skip
    assert len(made.problems.held_out) == 200
    assert held_out.problems is problems
    assert [step for step in range(12) if more.is_due(step, 11)] == [0, 5, 10, 11]
    looked = Counter((problem.set, problem.source) for problem in problems_to_check(problems, [more, made, held_out]))
    for asked in (more, made, held_out):  # each that is evaluated on, and that once
        assert {looked[problem.set, problem.source] for problem in asked.problems.held_out} == {1}
    assert {(problem.set, problem.source) for problem in problems.drawn} <= set(looked)
    config = configured(problems=f"{tmp_path}/sums.csv", held_out="0", evals=f"[{{path: {tmp_path}/sums.csv}}]")
    with pytest.raises(ProblemError, match=r"^evals: sums: the policy was trained on all 100 problems"):
        plans(config, open_problems(config.sets, config.verifier, config.held_out, 0))


def test_a_limit_takes_of_each_set_that_is_held_out_and_the_same_problems_whatever_is_trained_on(
    tmp_path: Path,
) -> None:
    head = "python_expression,natural_language\n"
    for name, count in {"sums": 300, "more": 100, "few": 2}.items():
        rows = [f"{n} + 1,{name}: add 1 to {n}\n" for n in range(count)]
        (tmp_path / f"{name}.csv").write_text(head + "".join(rows))
    mix = f"[{{path: {tmp_path}/more.csv}}, {{path: {tmp_path}/few.csv}}]"

    def limited(limit: int) -> dict[str, int]:
        config = configured(
            problems=f"{tmp_path}/sums.csv", mix=mix, held_out="1", evals=f"[{{path: held_out, limit: {limit}}}]"
        )
        problems = open_problems(config.sets, config.verifier, None, 0)  # a fifth of each
        few = [replace(problem, set="few") for problem in problems.held_out[:2]]
        (plan,) = plans(config, replace(problems, held_out=(*problems.held_out, *few)))
        return dict(Counter(problem.set for problem in plan.problems.held_out))

    assert limited(8) == {"sums": 5, "more": 2, "few": 1}
    assert limited(1) == {"sums": 1, "more": 1, "few": 1}
    assert limited(81) == {"sums": 59, "more": 20, "few": 2}
    assert limited(1000) == {"sums": 60, "more": 20, "few": 2}

    def chosen(trained_on: str) -> list[str]:
        config = configured(problems=trained_on, evals=f"[{{path: {tmp_path}/sums.csv, limit: 20}}]")
        problems = open_problems(config.sets, config.verifier, config.held_out, 0)
        return [problem.source for problem in plans(config, problems)[0].problems.held_out]

    assert chosen("grammar") == chosen(f"{tmp_path}/more.csv")
    assert chosen("grammar") != [f"sums.csv:{row}" for row in range(2, 22)]


@pytest.mark.slow
def test_figures_of_another_evaluation_are_compared_with_none(
    lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graded = tmp_path / "graded.py"
    graded.write_text("def reward(problem, completion):\n    return 0.9\n")
    held_out = "{path: held_out, every: 1}"
    best = {"checkpoint__keep_best": "true", "evals": f"[{held_out}]", "verifier": f"{graded}:reward"}
    run = Path(lab.train(steps="1", **best).run)
    assert best_version(str(run)).step == 0  # type: ignore[union-attr]
    resumed = lab.train(resume=str(run), run=str(run), steps="2", **best)
    assert (resumed.reward_before, resumed.best.step) == (pytest.approx(0.9), 0)
    assert resumed.report is None  # as --tracking.report false makes none
    # fewer problems: the rewards are others, and so they are with the function edited
    for evals, text, count in (("[{path: held_out, every: 1, limit: 3}]", "0.9", 3), (f"[{held_out}]", "0.8", 16)):
        capsys.readouterr()
        graded.write_text(f"def reward(problem, completion):\n    return {text}\n")
        result = lab.train(resume=str(run), run=str(run), steps=str(resumed.steps + 1), **{**best, "evals": evals})
        said = capsys.readouterr().err
        assert "held-out: earlier figures are of other problems" in said
        assert f"model-best: v{resumed.best.step} was chosen by another evaluation" in said
        assert result.best.step == resumed.steps  # the first that this evaluation saw
        assert (result.reward_before, result.reward_after) == (None, pytest.approx(float(text)))
        shown = summary(Run(result.run, configured(), resumed=True), result, 1.0)
        assert f"reward      {float(text):.3f} greedy on {count} held-out problems" in shown
        resumed = result
    logged = [(line.plan, line.step) for line in read_metrics(run / "metrics.jsonl") if "eval/reward" in line.metrics]
    assert len(set(logged)) == len(logged)
    assert [step for _, step in logged] == [0, 1, 2, 2, 3, 3, 4]  # of 2 and 3 each evaluation has its own
    record = read_record(str(run), run)
    assert record.curve("eval/reward") == {3: pytest.approx(0.8), 4: pytest.approx(0.8)}
    assert record.about["changes"][-1].startswith(f"from step 3 on: verifier {graded}")
    page = write_report(str(run), record, tmp_path / "report.html").read_text()
    assert "reward 0.800 → 0.800" in " ".join(re.sub("<[^>]*>", " ", page).split())
    assert "figures of another evaluation are left out" in page
    assert f"from step 3 on: verifier {graded}" in page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"evals": "[{path: a.csv, weight: 2}]"}, "weight: mixes what is trained on"),
        ({"evals": "[{path: held_out, prompt: q}]"}, "prompt: the problems held out are those"),
        ({"evals": "[{every: 1}, {every: 2}]"}, "evals: held_out is there more than once"),
        ({"evals": "[{every: 1}]", "held_out": "0"}, "evaluates on nothing where --held_out is 0"),
        ({"checkpoint__keep_best": "true"}, "--evals '[{path: held_out, every: 10}]'"),
        ({"checkpoint__keep_best": "true", "evals": "a.csv"}, "checkpoint.keep_best needs an evaluation during"),
    ],
)
def test_evaluations_that_make_no_sense_are_refused_in_one_line(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError) as refused:
        configured(**options)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_an_evaluation_s_leases_are_no_larger_than_training_s_and_their_size_changes_nothing(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leases: list[tuple[int, int]] = []  # problems and completions of each
    said: dict[tuple[str, int], list[str]] = {}
    original = Dispatch.lease

    def lease(self: Dispatch, call: str, function: Any, items: Any, **options: Any) -> Iterator[Any]:
        for index, made in original(self, call, function, items, **options):
            if call == "evaluate":
                leases.append((len(made.problems), made.lengths.size))
            if call == "evaluate" and not made.versions.any():  # of version 0
                for problem, texts in zip(made.problems, made.texts, strict=True):
                    said[problem.prompt, len(texts)] = list(texts)
            yield index, made

    monkeypatch.setattr(Dispatch, "lease", lease)
    figures = []
    for size in ("2", "16"):  # of batch.lease; batch.samples is 4
        leases.clear()
        result = lab.train(steps="1", batch__lease=size, evals="[{samples: 3}]")
        assert max(completions for _, completions in leases) <= 4 * int(size)
        assert (2, 6) in leases if size == "2" else (16, 48) in leases
        figures.append((result.reward_before, result.sampled_before, dict(said)))
    assert figures[0] == figures[1]
    leases.clear()
    lab.evaluate(policy=Path(result.run).name, samples="40", held_out="0")  # of a run: as it was trained
    assert set(leases) == {(1, 40), (64, 64), (36, 36)}
