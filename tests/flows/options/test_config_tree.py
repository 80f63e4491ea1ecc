"""What Prefect's form and API take is what YAML takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError, validate
from pydantic import BaseModel

from flows.config import EvalConfig, SftConfig, TrainConfig
from flows.evaluate import evaluate_policy
from flows.options.reading import read_config
from flows.options.tree import section_of
from flows.sft import sft
from flows.train import train
from rl.config import ProblemsConfig, VerifierConfig

FLOWS = [(train, TrainConfig), (sft, SftConfig), (evaluate_policy, EvalConfig)]
IN_SHORT = {
    "problems": "q.jsonl",
    "verifier": "my.py:reward",
    "policy": "Qwen/Qwen3-0.6B",
    "algorithm": "grpo",
    "mix": ["more.csv", {"path": "countdown", "weight": 2}],
    "optimizer": None,
    "sampling": {"max_tokens": 9},
}


def schema(flow: Callable[..., Any]) -> dict[str, Any]:
    """As a deployment of the flow has it."""
    return parameter_schema(flow).model_dump()


def fields(flow: Callable[..., Any], model: type[BaseModel]) -> dict[str, Any]:
    found: dict[str, Any] = schema(flow)["definitions"][model.__name__]["properties"]
    return found


def test_what_yaml_takes_in_short_passes_the_api_and_means_the_same(tmp_path: Path) -> None:
    validate({"config": IN_SHORT}, schema(train), raise_on_error=True, preprocess=True)
    (tmp_path / "my.yaml").write_text(yaml.safe_dump({**IN_SHORT, "optimizer": {}}))
    config = TrainConfig.model_validate(IN_SHORT)
    assert config == read_config(TrainConfig, file=str(tmp_path / "my.yaml"), overrides={})
    assert config.verifier == VerifierConfig(name="my.py:reward")
    assert config.mix[0] == ProblemsConfig(path="more.csv")
    assert config.optimizer == TrainConfig().optimizer


def test_a_configuration_that_is_written_out_passes_too() -> None:
    for flow, model in FLOWS:
        whole = model().model_dump(mode="json")
        validate({"config": whole}, schema(flow), raise_on_error=True, preprocess=True)
        assert model.model_validate(whole) == model()


def test_the_form_of_an_evaluation_leaves_to_the_run_how_it_was_trained() -> None:
    shown = fields(evaluate_policy, EvalConfig)
    sent = {name: field.get("default") for name, field in shown.items()}
    given = EvalConfig.model_validate({**sent, "policy": "newest"}).model_fields_set
    assert given.isdisjoint({"problems", "verifier", "sampling"})
    assert "policy" in given


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"algorithm": "pppo"}, "config.algorithm'. Failure reason: 'pppo' is not valid"),
        ({"algorithm": {"name": "pppo"}}, "config.algorithm.name'. Failure reason: 'pppo' does not match"),
        ({"optimizer": {"lr": -1}}, "config.optimizer.lr'"),
        ({"verifier": 3}, "config.verifier'"),
        ({"verifier": ""}, "config.verifier'"),
        ({"steps": None}, "config.steps'"),
    ],
)
def test_a_bad_value_is_still_named(config: Any, named: str) -> None:
    with pytest.raises(ValidationError, match="Validation failed for field") as refused:
        validate({"config": config}, schema(train), raise_on_error=True, preprocess=True)
    assert named in str(refused.value)


def test_the_form_begins_with_what_most_need_and_folds_the_rest() -> None:
    shown = fields(train, TrainConfig)
    order = sorted(shown, key=lambda name: int(shown[name]["position"]))
    assert order[:4] == ["problems", "verifier", "policy", "steps"]
    assert order[-3:] == ["cluster", "placement", "tracking"]
    assert sorted(order) == sorted(TrainConfig.model_fields)
    for flow, model in FLOWS:
        shown = fields(flow, model)
        assert len({field["position"] for field in shown.values()}) == len(shown)
        assert set(model.first) <= set(shown)
        open_ones = [
            name
            for name, field in model.model_fields.items()
            if section_of(field) and not isinstance(shown[name].get("default"), str | None)
        ]
        assert open_ones == []
        validate(
            {"config": {name: field["default"] for name, field in shown.items() if "default" in field}},
            schema(flow),
            raise_on_error=True,
            preprocess=True,
        )
        assert model.model_validate({name: field.get("default") for name, field in shown.items()}) == model()


def test_every_field_of_the_form_has_a_name() -> None:
    for flow, _ in FLOWS:
        whole = schema(flow)
        for properties in (
            whole["properties"],
            *(each.get("properties", {}) for each in whole["definitions"].values()),
        ):
            assert [name for name, field in properties.items() if not field.get("title")] == []
    assert fields(train, TrainConfig)["warm_up"]["title"] == "Warm Up"


def test_what_an_option_was_called_in_an_older_version_is_still_read(tmp_path: Path) -> None:
    (tmp_path / "old.yaml").write_text("batch:\n  refill: 3\n  samples: 4\n")
    for old in ({"refill": 3, "samples": 4}, {"samples": 4, "oversample": 3}):
        config = TrainConfig.model_validate({"batch": old})
        assert config == read_config(TrainConfig, file=str(tmp_path / "old.yaml"), overrides={})
    assert (config.batch.oversample, config.batch.samples) == (3, 4)
