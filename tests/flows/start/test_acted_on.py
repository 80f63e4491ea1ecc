"""Runs and evaluations of an environment: what is refused before anything starts, and what is chosen."""

import re
from pathlib import Path
from typing import Any

import pytest

from flows.config import EvalConfig, EvaluationConfig, TrainConfig
from flows.options.reading import OptionError, read_config
from flows.run.plans import plans, what_judges
from flows.start.as_trained import asked_of_model, asked_of_run
from flows.start.defaults import with_defaults, with_eval_defaults
from flows.start.edited import edited_judges, save_sources
from rl.environments import opened
from rl.environments.episode import Episode
from rl.environments.spec import EnvironmentSpecError
from rl.model.tiny import build_model, build_tokenizer
from tasks.sets.problem_set import open_problems, problems_to_solve
from tests.flows.commands.refusals import refused

pytestmark = pytest.mark.usefixtures("home_folder")

SAYS = """
class Says:
    turns = 3

    def reset(self, target, **_):
        self.target = int(target)

    def say(self, number: int) -> str:
        '''Say it.

        Args:
            number: it
        '''
        return "higher"

    def get_reward(self):
        return 0
"""


@pytest.fixture
def says(tmp_path: Path) -> str:
    path = tmp_path / "says.py"
    path.write_text(SAYS)
    (tmp_path / "q.jsonl").write_text("".join(f'{{"prompt": "say {n}", "target": "{n}"}}\n' for n in range(20)))
    return f"{path}:Says"


def given(model: type[Any], **options: str) -> Any:
    named = {key.replace("__", "."): value for key, value in options.items()}
    return read_config(model, file=None, overrides=named, defaults=model is TrainConfig)


def model_with(template: str, folder: Path) -> str:
    tokenizer = build_tokenizer()
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    build_model(len(tokenizer), tokenizer.eos_token_id or 0, 0, seed=0).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"verifier": "math"}, "verifier.name: the environment guess gives the reward; leave one of them out"),
        ({"policy__engine": "http://127.0.0.1:8000"}, "policy.engine: a server is asked for completions of one turn"),
        ({"sampling__stop": "x"}, "sampling.stop: a turn ends by the model's own end token"),
        ({"algorithm": "remax"}, "algorithm.name: remax has a greedy completion of one turn"),
    ],
)
def test_what_is_of_one_turn_does_not_go_with_an_environment(options: dict[str, str], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        given(TrainConfig, environment="guess", **options)


def test_an_environment_of_ours_has_its_problems_and_others_are_refused(says: str) -> None:
    assert given(TrainConfig, environment="guess").problems.path == "guess"
    for environment, problems, said in (
        ("guess", "hanoi", "are not those of the environment guess"),
        (says, "arithmetic", "name its problems by --problems"),
    ):
        config = given(TrainConfig, environment=environment, problems=problems)
        with pytest.raises(EnvironmentSpecError, match=said):
            open_problems(config.sets, config.verifier, 0, 0, environment=config.environment)
    config = given(TrainConfig, problems="guess")
    with pytest.raises(EnvironmentSpecError, match="give --environment guess"):
        open_problems(config.sets, config.verifier, 0, 0, environment=config.environment)


def test_sets_of_one_turn_are_mixed_with_those_that_are_played(says: str, tmp_path: Path) -> None:
    played = str(tmp_path / "q.jsonl")
    sums = tmp_path / "sums.jsonl"
    sums.write_text("".join(f'{{"prompt": "add {n} and {n}", "target": "{n} + {n}"}}\n' for n in range(20)))
    mix = f'[{{path: "{sums}", verifier: arithmetic, weight: 2}}, {{path: countdown}}]'
    config, lines = with_defaults(given(TrainConfig, environment=says, problems=played, mix=mix, held_out="4"))
    assert config.sampling.max_tokens == 72, lines
    problems = open_problems(config.sets, config.verifier, 4, 0, 64, config.environment)
    assert problems.judged_by == f"arithmetic (sums), countdown (countdown), environment {says} (q)"
    assert problems.mixed
    drawn = problems.draw(0, 64, 0)
    assert {(each.set, each.played) for each in drawn} == {("q", True), ("sums", False), ("countdown", False)}
    assert sum(each.set == "sums" for each in drawn) > sum(each.set == "q" for each in drawn)
    assert [each.set for each in problems.some_played()] == ["q"]
    assert len({spec.name for spec in problems.programs}) == 3

    own = asked_of_run(given(EvalConfig, policy="mine", held_out="4"), "mine", config).problems
    assert (own.judged_by, len(own.held_out)) == (problems.judged_by, 12)
    of_one_turn = asked_of_run(given(EvalConfig, policy="mine", problems=str(sums)), "mine", config).problems
    assert (of_one_turn.judged_by, of_one_turn.environment) == ("arithmetic", None)
    made = asked_of_run(given(EvalConfig, policy="mine", problems="countdown", held_out="3"), "mine", config).problems
    assert (made.judged_by, made.environment) == ("countdown", None)
    assert len(plans(config, problems)) == 1
    config = config.model_copy(update={"evals": (EvaluationConfig(path="grammar", limit=5),)})
    (tmp_path / "more.py").write_text(SAYS)
    more = f"{tmp_path / 'more.py'}:Says"
    other = asked_of_run(given(EvalConfig, policy="mine", environment=more), "mine", config).problems
    assert other.judged_by == f"arithmetic (sums), countdown (countdown), environment {more} (q)"
    grammar, held_out = plans(config, problems)
    assert (grammar.problems.judged_by, grammar.problems.environment) == ("arithmetic", None)
    assert what_judges(problems, [grammar, held_out]).startswith("judged by arithmetic (sums, grammar), countdown")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"problems": "guess", "problems__verifier": "gsm8k"},
            "problems.verifier 'gsm8k': the environment guess gives",
        ),
        ({"problems": "countdown"}, "environment 'guess': name its problems by --problems; countdown has a verifier"),
        ({"problems": "countdown", "mix": "[{path: hanoi}]"}, "problems hanoi: are not those of the environment guess"),
        (
            {"environment": "x.py:X", "mix": "[{path: q.jsonl}]"},
            "environment 'x.py:X': name its problems by --problems",
        ),
        ({"problems": "guess", "mix": "[{path: guess, verifier: math}]"}, "problems.verifier 'math': the env"),
    ],
)
def test_what_an_environment_is_not_acted_on_with_is_refused(options: dict[str, str], said: str) -> None:
    config = given(TrainConfig, **{"environment": "guess", **options})
    with pytest.raises(EnvironmentSpecError, match=f"^{re.escape(said)}"):
        open_problems(config.sets, config.verifier, 0, 0, environment=config.environment)
    with pytest.raises(EnvironmentSpecError, match=f"^{re.escape(said)}"):
        asked_of_model(given(EvalConfig, **{"environment": "guess", **options}))


def test_an_environments_own_problems_stand_beside_others_in_whatever_order() -> None:
    for options, paths in (
        ({"problems": "arithmetic", "mix": "[{path: guess}]"}, ["arithmetic", "guess"]),
        ({"mix": "[{path: arithmetic}]"}, ["guess", "arithmetic"]),
        ({"mix": "[guess]"}, ["arithmetic", "guess"]),
        ({"problems": "guess", "mix": "[{path: guess}, {path: guess}]"}, ["guess"] * 3),
    ):
        config = given(TrainConfig, environment="guess", **options)
        assert [each.path for each in config.sets] == paths
        problems = open_problems(config.sets, config.verifier, 4, 0, 8, config.environment)
        assert len(problems.held_out) == 4 * len(paths)
        assert len(problems.draw(0, 8, 0)) == 8


def test_played_problems_of_one_prompt_are_told_apart_by_what_reset_is_given(says: str, tmp_path: Path) -> None:
    path = tmp_path / "numbers.jsonl"
    path.write_text("".join(f'{{"question": "find it.", "answer": "{n}", "pegs": 3}}\n' for n in range(40)))
    config = given(TrainConfig, environment=says, problems=str(path))
    problems = open_problems(config.sets, config.verifier, None, 0, 8, config.environment)
    assert len(problems.held_out) == 8
    columns = Episode("k", problems.held_out[0]).columns
    assert columns == {"prompt": "find it.", "question": "find it.", "target": columns["answer"], "pegs": 3, **columns}
    trained = {problem.target for problem in problems.drawn}
    assert len(trained) == 32
    assert not trained & {problem.target for problem in problems.held_out}
    path.write_text(path.read_text() + '{"question": "find it.", "answer": "99", "pegs": 3}\n')
    rest = problems_to_solve(config.sets, config.verifier, None, 0, problems.trained, environment=config.environment)
    assert (len(rest.held_out), rest.left_out) == (9, 32)


def test_limits_of_verifiers_are_of_use_beside_an_environment_where_one_judges() -> None:
    beside = {"environment": "guess", "verifier__seconds": "9"}
    assert given(TrainConfig, mix="[{path: countdown}]", **beside).verifier.seconds == 9
    with pytest.raises(OptionError, match=r"verifier\.seconds: the environment guess gives the reward"):
        given(TrainConfig, **beside)


def test_tokens_are_those_of_its_turns(says: str) -> None:
    config, lines = with_defaults(given(TrainConfig, environment=says, problems="q.jsonl"))
    assert config.sampling.max_tokens == 3 * 24
    assert lines[1] == "sampling.max_tokens 72: for 3 turns of a policy of 0.9M parameters in the environment Says"
    config, lines = with_eval_defaults(given(EvalConfig, environment="hanoi"), None)
    assert config.sampling.max_tokens == 512  # 64 turns
    assert lines == ["sampling.max_tokens 512: half of the 1024 that the model can attend to"]


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("class Says", "class Other", "environment says.py: no class 'Says' at its top level; it has Other"),
        ("number: int", "number", "says.py: Says.say: its argument number has no type; write number: int, or what"),
        ("int(target)", "target.lower().x", "says.py:6: AttributeError: 'str' object has no attribute 'x'"),
        ("turns = 3", "turns = many", "environment says.py: Says.turns = many: write a whole number from 1 to 1000"),
    ],
)
def test_an_environment_that_does_not_work_is_one_line_before_anything_starts(
    says: str,
    was: str,
    now: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("flows.commands.train.in_workplace", lambda *_: pytest.fail("started"))
    path = Path(says.partition(":")[0])
    path.write_text(SAYS.replace(was, now))
    before = set(opened._kept)
    line = refused(["train", "--environment", says, "--problems", str(path.parent / "q.jsonl")], capsys)
    assert said in line
    assert set(opened._kept) == before


def test_a_model_whose_turns_cannot_be_gone_on_from_is_one_line_before_anything_starts(
    says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flows.commands.train.in_workplace", lambda *_: pytest.fail("started"))
    words = ["train", "--environment", says, "--problems", str(tmp_path / "q.jsonl"), "--policy"]
    template = "{% for m in messages %}{{ m.content }} {% endfor %}"
    line = refused([*words, model_with(template, tmp_path / "model")], capsys)
    assert line == "rlvf: the model's chat template puts no token of its own behind a turn, to go on from"


def test_an_evaluation_of_a_run_is_of_its_environment_or_of_another(says: str, tmp_path: Path) -> None:
    problems = str(tmp_path / "q.jsonl")
    trained, _ = with_defaults(given(TrainConfig, environment=says, problems=problems, held_out="4"))
    more = str(tmp_path / "more.jsonl")
    Path(more).write_text('{"prompt": "say 99", "target": "99"}\n')
    of_files = asked_of_run(given(EvalConfig, policy="mine", problems=more), "mine", trained)
    assert of_files.problems.environment is not None
    assert of_files.problems.judged_by == f"environment {says}"
    assert [problem.prompt for problem in of_files.problems.held_out] == ["say 99"]
    other = asked_of_run(given(EvalConfig, policy="mine", environment="guess"), "mine", trained)
    assert other.problems.judged_by == "environment guess"
    of_one_turn, _ = with_defaults(given(TrainConfig, problems=problems, verifier="math", held_out="4"))
    played = asked_of_run(given(EvalConfig, policy="mine", environment="guess"), "mine", of_one_turn)
    assert played.problems.judged_by == "environment guess"
    with pytest.raises(ValueError, match=r"verifier\.name: the environment .* gives the reward"):
        asked_of_run(given(EvalConfig, policy="mine", verifier="math"), "mine", trained)


def test_an_environment_that_was_edited_since_is_said(says: str, tmp_path: Path) -> None:
    def problems() -> Any:
        config = given(TrainConfig, environment=says, problems=str(tmp_path / "q.jsonl"))
        return open_problems(config.sets, config.verifier, 0, 0, environment=config.environment)

    run = str(tmp_path / "run")
    save_sources(run, problems())
    assert edited_judges(run, problems()) == []
    Path(says.partition(":")[0]).write_text(SAYS.replace("higher", "lower"))
    assert edited_judges(run, problems()) == [f"environment {says}: edited since"]
