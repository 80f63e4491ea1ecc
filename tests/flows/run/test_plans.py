"""How the sets of evals are asked and judged."""

from pathlib import Path

import pytest
import yaml

from flows.config import EvalConfig, TrainConfig
from flows.options.reading import read_config, to_yaml
from flows.run.plans import EvaluationPlan, digest_of, plans, what_judges
from flows.start.as_trained import asked_of_run
from flows.start.runs import without_secrets
from infra.runs.metric_log import MetricLine
from rl.judging import judge
from rl.verifiers.built_in.countdown import INSTRUCTIONS
from tasks.sets.problem_set import open_problems, problems_to_solve
from tests.flows.run.test_evaluations import configured


@pytest.fixture
def two_files(tmp_path: Path) -> tuple[str, str]:
    for name in ("tr", "te"):
        rows = [f'{{"question": "{name}: how many is {n}?", "answer": "{n}"}}\n' for n in range(20)]
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))
    return f"{tmp_path}/tr.jsonl", f"{tmp_path}/te.jsonl"


@pytest.mark.parametrize("way", ["given", "saved", "from Prefect"])
@pytest.mark.parametrize(
    ("of_its_own", "verifier", "words"),
    [
        ("", "gsm8k", "Q: {prompt}\nA:"),
        (", verifier: arithmetic", "arithmetic", "Q: {prompt}\nA:"),
        (", verifier: auto", "arithmetic", "Q: {prompt}\nA:"),
        (", template: '{prompt} ='", "gsm8k", "{prompt} ="),
        (", system: Be brief.", "gsm8k", "Be brief."),
        (", system: ''", "gsm8k", None),
    ],
)
def test_a_set_is_evaluated_as_the_run_is_trained_but_for_what_it_gives(
    two_files: tuple[str, str], of_its_own: str, verifier: str, words: str | None, way: str
) -> None:
    trained, other = two_files
    template = {"problems__template": "Q: {prompt}\nA:", "problems__verifier": "gsm8k"}
    config = configured(problems=trained, held_out="5", evals=f"[{{path: {other}{of_its_own}}}]", **template)
    if way == "saved":  # with all defaults written
        config = read_config(TrainConfig, file=None, overrides={}, base=yaml.safe_load(to_yaml(config)))
    elif way == "from Prefect":
        config = without_secrets(TrainConfig.model_validate(config.model_dump(mode="json")))
    (te, held_out) = plans(config, open_problems(config.sets, config.verifier, config.held_out, 0))
    said = te.problems.held_out[0].instructions
    assert (te.problems.verifiers["te"].name, said and (said.template or said.system)) == (verifier, words)
    assert held_out.note == ""
    # and as `rlvf eval` of the run takes it
    given = {f"problems.{key}": value for key, value in yaml.safe_load(f"{{path: {other}{of_its_own}}}").items()}
    asked = read_config(EvalConfig, file=None, overrides={"policy": "mine", **given}, defaults=False)
    assert digest_of(asked_of_run(asked, "mine", config).problems, te.samples, te.tokens) == te.digest
    # figures of a run that began when such a set took nothing are another evaluation's, which is told by the digest
    alone = problems_to_solve([config.evals[0]], config.verifier, None, config.seed)
    assert digest_of(alone, te.samples, te.tokens) != te.digest or not te.note
    taken = [part for part in ("verifier 'gsm8k'", "template 'Q: {prompt}\\nA:'") if part in te.note]
    assert len(taken) == (verifier == "gsm8k") + (words == template["problems__template"])
    assert te.note.startswith("te: evaluated as the run is trained, with ") == bool(taken)


@pytest.mark.slow
def test_a_file_that_is_trained_on_keeps_its_columns_and_what_differs_among_the_sets_is_not_taken(
    two_files: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "own.jsonl").write_text("".join(f'{{"q": "{n}?", "a": "{n}"}}\n' for n in range(20)))
    own = {"problems__prompt": "q", "problems__target": "a", "problems__verifier": "gsm8k", "held_out": "5"}
    evals = f"[{{path: {two_files[1]}}}, {{path: {tmp_path}/./own.jsonl}}, countdown]"
    mix = f"[{{path: {two_files[0]}, template: '{{prompt}} ='}}]"
    config = configured(problems=f"{tmp_path}/own.jsonl", mix=mix, evals=evals, **own)
    te, mine, made, _ = plans(config, open_problems(config.sets, config.verifier, config.held_out, 0))
    assert [spec.name for plan in (te, mine, made) for spec in plan.problems.verifiers.values()] == [
        *("arithmetic", "gsm8k", "countdown")
    ]
    assert {said and said.template for said in (problem.instructions for problem in te.problems.held_out)} == {None}
    assert (te.note, made.note) == ("", "")
    assert what_judges(open_problems(config.sets, config.verifier, config.held_out, 0), [te, mine, made]) == (
        "judged by gsm8k (own, own-2), arithmetic (tr, te), countdown (countdown)"
    )
    assert mine.note == "own-2: evaluated as the run is trained, with prompt 'q', target 'a', verifier 'gsm8k'"


@pytest.mark.parametrize("name", ["gsm8k", "math"])
@pytest.mark.parametrize("option", ["verifier", "problems.verifier"])
def test_a_set_made_in_code_is_judged_by_its_own_verifier_however_the_run_names_its_own(
    two_files: tuple[str, str], name: str, option: str
) -> None:
    evals = "[{path: countdown, limit: 20}]"
    config = configured(problems=two_files[0], held_out="5", evals=evals, **{option.replace(".", "__"): name})
    training = open_problems(config.sets, config.verifier, config.held_out, 0)
    (made, held_out) = plans(config, training)
    [problem, *_] = made.problems.held_out
    echoed = [[f"#### {problem.target}", rf"\boxed{{{problem.target}}}"]]
    assert judge([problem], echoed, made.problems.verifiers).rewards.tolist() == [[0.0, 0.0]]
    assert problem.instructions == INSTRUCTIONS
    assert (made.note, what_judges(training, [made])) == ("", f"judged by {name} (tr), countdown (countdown)")
    assert what_judges(training, [held_out]) == ""


@pytest.mark.slow
def test_a_file_of_evals_is_judged_as_a_set_made_in_code_that_is_trained_on(tmp_path: Path) -> None:
    file = tmp_path / "cd.jsonl"
    file.write_text('{"prompt": "combine 7, 9 and 5 to obtain 11.", "target": "11", "numbers": [7, 9, 5]}\n')
    config = configured(problems="countdown", evals=f"[{{path: {file}}}]")
    plan, _ = plans(config, open_problems(config.sets, config.verifier, config.held_out, 0))
    completions = [["11", "11+0", "7+9-5"]]
    assert judge(plan.problems.held_out, completions, plan.problems.verifiers).rewards.tolist() == [[0.0, 0.0, 1.0]]
    assert plan.note == "cd: evaluated as the run is trained, with verifier 'countdown'"


def test_figures_of_shorter_completions_are_of_another_plan_and_those_of_older_versions_go_on(tmp_path: Path) -> None:
    (tmp_path / "sums.csv").write_text("problem,answer\n" + "".join(f"add 1 to {n},{n + 1}\n" for n in range(9)))

    def held_out(tokens: str) -> EvaluationPlan:
        config = configured(problems=f"{tmp_path}/sums.csv", sampling__max_tokens=tokens)
        return plans(config, open_problems(config.sets, config.verifier, config.held_out, 0))[0]

    plan = held_out("40")
    assert plan.digest == held_out("40").digest != held_out("20").digest
    older = digest_of(plan.problems, plan.samples)
    assert plan.continuing([MetricLine(0, 0, {}, older)]).digest == older
    assert plan.continuing([MetricLine(0, 0, {}, held_out("20").digest)]).digest == plan.digest
