"""The reference of a KL by name: a version of a run, what a run on examples has made, a model."""

from pathlib import Path
from typing import Any

import pytest

from flows.config import TrainConfig
from flows.finetune_config import RewardModelConfig, SftConfig
from flows.start.finetunes import Finetune
from flows.start.references import ReferenceNameError, check_reference, reference_source, with_named_reference
from flows.start.runs import Run
from flows.start.trust import untrusted_settings
from tasks.reference import RunVersion
from tasks.sets.example_set import ExampleSet
from tests.tasks.test_generator import published


def asked(name: str, **settings: Any) -> TrainConfig:
    return TrainConfig.model_validate(
        {"algorithm": {"name": "ppo", "kl": {"coefficient": 0.1, "reference": name}}, **settings}
    )


def named(name: str, runs: Path) -> str:
    config: TrainConfig = with_named_reference(asked(name), str(runs))
    assert config.algorithm.name == "ppo"
    assert config.algorithm.kl.coefficient == 0.1
    return config.algorithm.kl.reference


@pytest.fixture
def runs(home_folder: Path) -> Path:
    """With a run of two versions, 0 and 3."""
    runs = home_folder / "runs"
    for step in (0, 3):
        published(runs / "first", step)
    Run(str(runs / "first"), TrainConfig(), resumed=False).save_config()
    return runs


def test_a_run_is_named_by_its_version(runs: Path) -> None:
    first = runs / "first"
    for name in ("first", f"{first}", "first:3", f"{first}:3", "newest", "newest:3"):
        assert named(name, runs) == f"{first}:3", name
    assert named("first:0", runs) == f"{first}:0"
    source = reference_source(f"{first}:3")
    assert source == RunVersion(str(first), 3, TrainConfig().policy, None)
    assert check_reference(asked(f"{first}:3"), str(runs)) == ""
    with pytest.raises(
        ReferenceNameError,
        match=r"first:2': version 2 is not published, or was removed when no generator needed it; the run holds 0, 3\.",
    ):
        check_reference(asked(f"{first}:2"), str(runs))


def test_what_is_left_of_a_name_when_its_run_is_gone(runs: Path) -> None:
    """A run that goes on names a version as it was found, and has a copy."""
    gone = f"{runs}/gone:7"
    assert named(gone, runs) == gone
    assert reference_source(gone) is None


def test_the_start_is_no_name(runs: Path) -> None:
    config = TrainConfig()
    assert with_named_reference(config, str(runs)) is config
    assert check_reference(config, str(runs)) == ""


def test_a_model_is_named_as_a_policy_is(runs: Path, half_right: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(half_right.parent)
    assert named(half_right.name, runs) == str(half_right)
    assert reference_source(str(half_right)) == str(half_right)
    assert check_reference(asked(str(half_right)), str(runs)) == ""
    said = r"algorithm\.kl\.reference 'frist': is no run, and as a model: .*; did you mean first\?"
    with pytest.raises(ReferenceNameError, match=said):
        check_reference(asked(named("frist", runs)), str(runs))


@pytest.mark.parametrize("kind", [SftConfig, RewardModelConfig])
def test_a_run_on_examples_is_its_model(runs: Path, kind: Any) -> None:
    made = Finetune(str(runs / "tuned"), kind(), resumed=False)
    made.save(ExampleSet("examples", (), ()))
    with pytest.raises(ValueError, match="tuned"):
        named("tuned", runs)
    if kind is SftConfig:
        (runs / "tuned" / "model").mkdir()
        assert named("tuned", runs) == str(runs / "tuned" / "model")


def test_a_run_from_elsewhere_chooses_no_model(runs: Path, tmp_path: Path) -> None:
    """It would be loaded with the rights of whoever names the run."""
    config = TrainConfig.model_validate(
        {"policy": {"model": "mine/private"}, "sync": {"base": "public"}, "steps": 3, "algorithm": "grpo"}
    )
    for where, refused in ((tmp_path / "theirs", True), (runs / "ours", False)):
        Run(str(where), config, resumed=False).save_config()
        if refused:
            with pytest.raises(ReferenceNameError, match="which a run from elsewhere has chosen; name the folder that"):
                reference_source(f"{where}:3")
        else:
            found = reference_source(f"{where}:3")
            assert isinstance(found, RunVersion)
            assert found.public == "mine/private"


def test_a_reference_that_a_run_from_elsewhere_names_is_trusted_first(tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    for name in ("/home/ann/model", "mine/private", f"{tmp_path}/another:3"):
        assert untrusted_settings(asked(name), elsewhere)["algorithm.kl.reference"] == name
    for name in ("start", f"{elsewhere}/model-best"):
        assert "algorithm.kl.reference" not in untrusted_settings(asked(name), elsewhere)


@pytest.mark.parametrize(
    ("kl", "said"),
    [
        ({"reference": "first"}, "reference: needs a coefficient above 0"),
        (
            {"coefficient": 0.1, "reference": "first", "reference_every": 5},
            "reference: first stays as it is, and with reference_every the reference is the policy of a step; leave",
        ),
    ],
)
def test_what_has_no_effect_is_refused(kl: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TrainConfig.model_validate({"algorithm": {"kl": kl}})
