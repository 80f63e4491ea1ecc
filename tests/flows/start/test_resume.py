"""Runs that go on with the changes that Prefect sends: a few from its API, all that it shows from its form."""

import math
from pathlib import Path
from typing import Any

import pytest

from flows.config import TrainConfig
from flows.options.reading import OptionError, read_config
from flows.start.defaults import with_defaults
from flows.start.resume import resume_run, resume_with
from flows.start.runs import Run, with_secrets
from infra.runs.checkpoints import NotARun
from infra.storage import store

OWN = {
    "verifier": "/data/my_reward.py:reward",
    "steps": 2,
    "held_out": 20,
    "evals": [{"path": "held_out", "every": 1}],
    "checkpoint": {"keep_best": True},
    "batch": {"prompts": 4},
}
FORM = {  # what Prefect's form sends untouched: each default that its schema shows, and no more
    name: shown["default"]
    for name, shown in TrainConfig.model_json_schema()["properties"].items()
    if shown.get("default") is not None
}


@pytest.fixture
def saved(home_folder: Path) -> Run:
    """A run of this home with settings of its own."""
    asked = TrainConfig.model_validate({"run": "mine", **OWN})
    run = Run(str(home_folder / "runs" / "mine"), with_defaults(asked)[0], resumed=False)
    run.save_config()
    return run


def gone_on(saved: Run, sent: Any, *, form: bool = True) -> tuple[TrainConfig, list[str]]:
    run, kept = resume_with("mine", str(Path(saved.uri).parent), TrainConfig.model_validate(sent), form=form)
    assert (run.uri, run.resumed, run.saved) == (saved.uri, True, saved.config)
    return run.config, kept


def changed(saved: Run, **values: Any) -> TrainConfig:
    return TrainConfig.model_validate({**saved.config.model_dump(), **values})


def test_what_is_not_given_is_as_saved(saved: Run) -> None:
    assert gone_on(saved, {}) == (saved.config, [])
    assert gone_on(saved, {"held_out": 20}) == (saved.config, [])
    assert gone_on(saved, {"steps": 5, "checkpoint": {"every": 3}}) == (
        changed(saved, steps=5, checkpoint={"every": 3, "keep_best": True}),
        [],
    )
    policy = {"policy": {"device": "cpu"}}  # the model beside it is none that was given
    assert gone_on(saved, policy, form=False)[0].policy.device == "cpu"
    served = {"policy": {"engine": "http://127.0.0.1:8000"}}
    assert gone_on(saved, served, form=False)[0].policy.engine == "http://127.0.0.1:8000"


def with_correction(home: Path, **correction: Any) -> Run:
    algorithm = {"name": "cispo", "correction": correction}
    asked = TrainConfig.model_validate({"run": "mine", "steps": 2, "staleness": 4, "algorithm": algorithm})
    run = Run(str(home / "runs" / "mine"), with_defaults(asked)[0], resumed=False)
    run.save_config()
    return run


def typed(saved: Run, **options: str) -> TrainConfig:
    """What `rlvf train --resume` makes of options whose dots are written as two underscores."""
    overrides = {name.replace("__", "."): value for name, value in options.items()}
    return resume_run("mine", str(Path(saved.uri).parent), None, overrides).config


@pytest.mark.parametrize(
    ("was", "now", "bounds"),
    [
        ({"kind": "sequence_mask", "low": 0.9, "high": 1.1}, "mask", (0.5, 5.0)),
        ({"kind": "mask", "low": 0.2, "high": 4}, "divergence", (0.2, 0.2)),
        ({"kind": "divergence", "low": 0.1}, "none", (0.0, math.inf)),
        ({"kind": "mask", "low": 0.2, "high": 4}, "mask", (0.2, 4.0)),
    ],
)
def test_another_correction_leaves_the_bounds_of_the_one_before_behind(
    home_folder: Path, was: dict[str, Any], now: str, bounds: tuple[float, float]
) -> None:
    saved = with_correction(home_folder, **was)
    assert typed(saved, algorithm__correction=now).algorithm.correction.bounds == bounds
    sent = {"algorithm": {"correction": {"kind": now}}}
    assert gone_on(saved, sent, form=False)[0].algorithm.correction.bounds == bounds
    if now == "divergence":
        given = typed(saved, algorithm__correction=now, algorithm__correction__high="0.3")
        assert given.algorithm.correction.bounds == (0.2, 0.3)


def test_an_infinite_bound_is_kept(home_folder: Path) -> None:
    saved = with_correction(home_folder, kind="divergence", low=math.inf, high=0.3)
    for config in (with_secrets(saved.config), typed(saved), typed(saved, steps="3"), gone_on(saved, {"steps": 3})[0]):
        assert config.algorithm.correction.bounds == (math.inf, 0.3)
    for name, option in (("cispo", "weight_cap"), ("reinforce", "ratio_cap"), ("dapo", "clip_high")):
        overrides = {"algorithm": name, f"algorithm.{option}": "inf"}
        config = with_secrets(read_config(TrainConfig, file=None, overrides=overrides))
        assert getattr(config.algorithm.built_in(), option) == math.inf


def test_a_form_that_sends_the_defaults_it_shows_changes_nothing_by_them(saved: Run) -> None:
    assert FORM["steps"] == 150
    assert FORM["verifier"] == "auto"
    config, kept = gone_on(saved, FORM)
    assert config == saved.config
    assert [line.partition(" ")[0] for line in kept] == ["evals", "steps", "verifier.name"]
    assert "steps stays 2, as saved: 150 is the default, which a form sends unasked" in kept
    assert gone_on(saved, {**FORM, "steps": 5})[0] == changed(saved, steps=5)


def test_a_command_sends_no_default_unasked(saved: Run) -> None:
    assert gone_on(saved, {"steps": 150}, form=False) == (changed(saved, steps=150), [])


@pytest.mark.parametrize("form", [True, False])
def test_a_contradiction_is_refused(saved: Run, tmp_path: Path, form: bool) -> None:
    with pytest.raises(OptionError, match="mine cannot be resumed with seed: saved 0, now 1; leave it out"):
        gone_on(saved, {"seed": 1}, form=form)
    with pytest.raises(NotARun, match="did you mean mine"):
        resume_with("mime", str(Path(saved.uri).parent), TrainConfig(), form=form)
    (made := tmp_path / "made").mkdir(exist_ok=True)
    (made / "weights").write_text("w")
    store.write_folder(f"{saved.uri}/state/4", made, move=True)
    with pytest.raises(OptionError, match=r"^steps 3: mine has made 4 already; give more"):
        gone_on(saved, {"steps": 3}, form=form)


def test_a_finished_run_may_be_gone_on_with_as_it_was_and_not_at_another_rate(saved: Run, tmp_path: Path) -> None:
    (made := tmp_path / "made").mkdir(exist_ok=True)
    (made / "weights").write_text("w")
    store.write_folder(f"{saved.uri}/state/2", made, move=True)
    whole = {**saved.config.model_dump(mode="json"), "optimizer": {"lr": None}}
    assert gone_on(saved, whole, form=False)[0] == saved.config
    tuned = Run(saved.uri, changed(saved, optimizer={"lr": 1e-3}), resumed=False)
    tuned.save_config()
    assert gone_on(tuned, {}, form=False)[0] == tuned.config
    for rate in (None, 1e-4):
        with pytest.raises(OptionError, match=r"^optimizer.lr: mine has made all of its 2 steps; give more steps, too"):
            gone_on(tuned, {"optimizer": {"lr": rate}}, form=False)


@pytest.mark.parametrize(
    ("was", "now", "why"),
    [
        ("grpo", "ppo", "(ppo needs a critic that has learned from every step, and the run has none)"),
        ("ppo", "grpo", "(grpo has no critic, and the run's would not learn from its steps)"),
    ],
)
def test_a_run_goes_on_neither_with_a_critic_that_it_had_not_nor_without_the_one_that_it_had(
    saved: Run, was: str, now: str, why: str
) -> None:
    Run(saved.uri, changed(saved, algorithm=was), resumed=False).save_config()
    with pytest.raises(OptionError) as refused:
        resume_with("mine", str(Path(saved.uri).parent), TrainConfig.model_validate({"algorithm": now}))
    said = f"algorithm.name: saved '{was}', now '{now}' {why}"
    assert str(refused.value) == f"mine cannot be resumed with {said}; leave it out, or start a new run"


@pytest.mark.parametrize("critic", [True, False])
def test_an_algorithm_that_was_edited_to_have_a_critic_or_none_does_not_go_on(
    saved: Run, tmp_path: Path, critic: bool
) -> None:
    def store_at(uri: str) -> None:
        (made := tmp_path / "made").mkdir(exist_ok=True)
        (made / "weights").write_text("w")
        store.write_folder(uri, made, move=True)

    saved.refuse_other_models(critic=critic)  # nothing was trained yet
    if not critic:
        store_at(f"{saved.uri}/critic/state/2")
        saved.refuse_other_models(critic=False)
    store_at(f"{saved.uri}/state/0")
    saved.refuse_other_models(critic=critic)  # no more than begun
    store_at(f"{saved.uri}/state/2")
    saved.refuse_other_models(critic=not critic)
    with pytest.raises(ValueError, match="mine cannot be resumed: reinforce has") as refused:
        saved.refuse_other_models(critic=critic)
    said = (
        "a critic, and the run was trained without one; restore its folder critic, if it had one"
        if critic
        else "no critic, and the run was trained with one; restore the algorithm as it was"
    )
    assert f"reinforce has {said}, or start a new run from {saved.uri}/model" in str(refused.value)


def test_a_critic_that_diverged_may_go_on_at_another_rate(saved: Run) -> None:
    Run(saved.uri, changed(saved, algorithm="ppo", critic={"lr": 1e30}), resumed=False).save_config()

    def now(**critic: float) -> TrainConfig:
        given = TrainConfig.model_validate({"algorithm": "ppo", "critic": {"lr": 1e-4, **critic}})
        return resume_with("mine", str(Path(saved.uri).parent), given)[0].config

    assert now().critic.lr == 1e-4
    with pytest.raises(OptionError, match=r"cannot be resumed with critic\.epochs: saved 1, now 2"):
        now(epochs=2)
