"""What the warm-up shows of each set: an environment answers it as it is shown, and no run draws it."""

from functools import cache
from pathlib import Path
from statistics import mean

import pytest

from rl.arithmetic import evaluate
from rl.config import IN_CODE
from rl.environments.built_in.guess import Guess
from rl.environments.calls import action_of
from rl.environments.episode import Episode
from rl.environments.opened import opened
from rl.environments.spec import EnvironmentSpec
from rl.model.tiny import UNKNOWN, build_tokenizer
from rl.problems.made import stream_of
from rl.problems.played import guess
from rl.problems.shown import GRAMMAR, Shown, shown, shown_of, updates
from rl.problems.streams import module_of
from rl.sources import path_of
from rl.verifiers.built_in import functions
from tests.streams import drawing

SETS = ("calculator", "functions", "grammar", "guess", "hanoi")
PLAYED = ("calculator", "guess", "hanoi")
FEW = ("guess", "hanoi")  # whose prompts are few: 1, and some 100


def test_these_can_be_shown_and_of_others_the_grammar_is() -> None:
    assert tuple(sorted({shown_of(name) for name in IN_CODE})) == SETS
    assert shown_of("sqlite") == shown_of("arithmetic") == shown_of("my.jsonl") == GRAMMAR
    assert all(updates(name) > 0 and Path(path_of(module_of(name))).is_file() for name in SETS)


@pytest.mark.parametrize("name", SETS)
def test_it_depends_on_seed_and_step_and_no_run_draws_it(name: str) -> None:
    some = shown(name, 1, 2, 20)
    assert shown(name, 1, 2, 5) == some[:5]
    assert shown(name, 2, 2, 20) != some != shown(name, 1, 3, 20)
    drawn = {problem.prompt for problem in drawing(stream_of(name))(1, 2, 40)}
    assert name in FEW or not drawn & {each.problem.prompt for each in some}
    held_out = {problem.prompt for problem in drawing(stream_of(name))(1, 2, 40, side="held_out")}
    assert name == "guess" or not held_out & {each.problem.prompt for each in shown(name, 0, 0, 300)}


@pytest.mark.parametrize("name", SETS)
def test_the_tiny_policy_can_write_it(name: str) -> None:
    tokenizer = build_tokenizer()
    unknown = tokenizer.convert_tokens_to_ids(UNKNOWN)
    for each in shown(name, 0, 0, 50):
        for said, _ in each.turns:
            tokens = tokenizer(said, add_special_tokens=False)["input_ids"]
            assert unknown not in tokens
            assert tokenizer.decode(tokens) == said


@pytest.mark.parametrize("name", PLAYED)
def test_an_environment_answers_as_is_shown(name: str) -> None:
    spec = EnvironmentSpec(name=name)
    played = opened(spec)
    tools = {
        tool["function"]["name"]: list(tool["function"]["parameters"]["properties"]) for tool in played.interface.tools
    }
    rewards = []
    for number, each in enumerate(shown(name, 3, 4, 40)):
        episode = Episode(str(number), each.problem)
        episode = episode.opened(played.open([episode])[0])
        assert episode.opening is not None
        assert not episode.opening.observations
        for turn, (said, observed) in enumerate(each.turns, 1):
            action = action_of(said, "plain", tools) if tools else said
            (outcome,) = played.act([episode], [action])
            episode = episode.after(action, outcome)
            assert not outcome.refused
            if turn < len(each.turns):
                assert outcome.observations == (observed,)
                assert not outcome.over
        assert len(each.turns) <= spec.limits.turns
        rewards += [verdict.reward for verdict in played.judge([episode])]
    assert max(rewards) > 0.5
    assert not all(reward == 1 for reward in rewards)


def test_half_of_the_word_problems_are_calculated_and_right_the_others_guessed_in_the_size_of_the_answer() -> None:
    some = shown("calculator", 0, 1, 400)
    calculated = [each for each in some if len(each.turns) == 2]
    assert 0.4 < len(calculated) / len(some) < 0.6
    for each in some:
        result = evaluate(each.problem.target)
        answer = int(each.turns[-1][0].removeprefix("answer(").removesuffix(")"))
        if len(each.turns) == 2:
            assert each.turns[0] == (f'calculate("{each.problem.target}")', str(result))
            assert answer == result
        else:
            assert result // 2 <= answer <= 2 * result + 1
    guessed = [each for each in some if len(each.turns) == 1]
    assert sum(each.turns[0][0] == f"answer({evaluate(each.problem.target)})" for each in guessed) < 0.1 * len(guessed)


def test_calls_that_are_shown_are_right() -> None:
    for each in shown("functions", 0, 1, 50):
        ((said, _),) = each.turns
        assert functions.verify(each.problem, said).reward == 1


def test_guesses_are_those_that_answers_leave() -> None:
    some = shown("guess", 0, 1, 2000)
    for each in some:
        least, most = 1, guess.LARGEST
        for said, observed in each.turns:
            number = int(said[len("guess(") : -1])
            assert least <= number <= most
            least, most = (number + 1, most) if observed == "higher" else (least, number - 1)
    found = [len(each.turns) for each in some if each.turns[-1][1] == "right"]
    assert len(found) > 0.9 * len(some)

    @cache
    def turns(numbers: int, left: int) -> float:
        """The mean, of a number that is one of so many, all alike, with so many turns left."""
        if not numbers or not left:
            return 0.0
        beyond = sum(rest * turns(rest, left - 1) for at in range(numbers) for rest in (at, numbers - 1 - at))
        return 1 + beyond / numbers**2

    assert turns(64, 100) == pytest.approx(6.636, abs=1e-3)  # as a search tree that is built at random has it
    assert mean(len(each.turns) for each in some) == pytest.approx(turns(64, Guess.turns), abs=0.15)


def test_a_target_is_one_turn() -> None:
    ((said, observed),) = Shown.target(next(iter(shown("grammar", 0, 0, 1))).problem).turns
    assert said
    assert not observed
