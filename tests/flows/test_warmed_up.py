"""Which warm-up a tiny policy gets."""

from typing import Any

import pytest
from pydantic import ValidationError

from flows.config import EvalConfig, TrainConfig
from flows.finetune_config import SftConfig
from flows.sft import warm_up_for, warm_up_spec
from rl.problems.shown import GRAMMAR, updates
from tasks.warm_up import warm_up_uri


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, GRAMMAR),
        ({"problems": "math_1k.csv"}, GRAMMAR),
        ({"problems": "functions"}, "functions"),
        ({"environment": "guess"}, "guess"),
        ({"environment": "guess.py:Guess", "problems": "hanoi"}, "hanoi"),
        ({"environment": "sqlite"}, GRAMMAR),
    ],
)
def test_it_shows_what_the_run_trains_on(given: dict[str, Any], shown: str) -> None:
    spec = warm_up_spec(warm_up_for(TrainConfig.model_validate(given)))
    assert (spec.problems, spec.steps) == (shown, updates(shown))
    assert warm_up_spec(warm_up_for(EvalConfig.model_validate(given))) == spec


def test_what_is_asked_for_is_shown() -> None:
    asked = TrainConfig.model_validate({"environment": "guess", "warm_up": {"problems": "grammar", "steps": 3}})
    spec = warm_up_spec(warm_up_for(asked))
    assert (spec.problems, spec.steps) == ("grammar", 3)
    assert warm_up_spec(SftConfig()).problems == GRAMMAR
    with pytest.raises(ValidationError, match=r"gues: there is nothing to show of it; there is of .*guess"):
        SftConfig.model_validate({"warm_up": {"problems": "gues"}})


def test_each_is_kept_by_a_name_of_its_own() -> None:
    of_each = [
        warm_up_uri("home", warm_up_spec(warm_up_for(TrainConfig.model_validate({"environment": name}))))
        for name in ("guess", "calculator", "hanoi")
    ]
    assert len({*of_each, warm_up_uri("home", warm_up_spec(SftConfig()))}) == 4
