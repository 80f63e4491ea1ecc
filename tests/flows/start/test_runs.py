"""Runs by name: how one begins, what may change when it goes on."""

import os
import re
import subprocess
import sys
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.config import TrainConfig
from flows.options.reading import OptionError, read_config, to_yaml
from flows.options.tree import known_options
from flows.start import runs
from flows.start.resume import MAY_CHANGE, resume_run
from flows.start.runs import Run, new_run
from flows.start.saved import saved_config
from flows.start.tracked import mlflow_run, save_mlflow_run
from infra.runs.checkpoints import CONFIG, NotARun
from infra.storage import place as places
from infra.storage import store
from infra.storage.typed import DamagedError


def configured(**overrides: str) -> TrainConfig:
    """A double underscore stands for a dot."""
    dotted = {name.replace("__", "."): value for name, value in overrides.items()}
    return read_config(TrainConfig, file=None, overrides=dotted)


@pytest.fixture
def saved(tmp_path: Path) -> Run:
    """A run that was started with a few settings of its own."""
    uri = str(tmp_path / "runs" / "first")
    run = Run(uri, configured(run=uri, steps="30", loss__ratio_cap="0.1", problems="/data/sums.csv"), resumed=False)
    run.save_config()
    return run


class Noon(datetime):
    @classmethod
    def now(cls, _tz: Any = None) -> datetime:
        return datetime(2026, 1, 2, 12, 0, 0)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("tiny", "20260102-120000-tiny"),
        ("Qwen/Qwen3-0.6B", "20260102-120000-Qwen3-0.6B"),
        ("/models/mine/", "20260102-120000-mine"),
    ],
)
def test_a_new_run_is_named_by_time_and_model_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, name: str
) -> None:
    monkeypatch.setattr(runs, "datetime", Noon)
    run = new_run(configured(policy__model=model), str(tmp_path / "runs"))
    assert (run.name, run.uri, run.resumed) == (name, str(tmp_path / "runs" / name), False)
    assert list(tmp_path.iterdir()) == []


def test_runs_that_begin_in_the_same_second_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "datetime", Noon)
    names = []
    for _ in range(3):
        run = new_run(TrainConfig(), str(tmp_path))
        run.save_config()
        names.append(run.name)
    assert names == ["20260102-120000-tiny", "20260102-120000-tiny-2", "20260102-120000-tiny-3"]


def test_so_are_those_of_which_none_is_written_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command is named a minute before its run is there."""
    monkeypatch.setattr(runs, "datetime", Noon)
    first = f"{tmp_path}/20260102-120000-tiny"
    code = f"from infra import disk; print(disk.claim({first!r}), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert new_run(TrainConfig(), str(tmp_path)).uri == f"{first}-2"
        other.communicate("\n", timeout=60)
    assert new_run(TrainConfig(), str(tmp_path)).uri == first


@pytest.mark.parametrize("place", ["name", "folder", "memory"])
def test_a_run_has_the_name_or_the_uri_that_was_asked_for_once(tmp_path: Path, place: str) -> None:
    home_runs = str(tmp_path / "runs")
    given = {"name": "mine", "folder": str(tmp_path / "else" / "mine"), "memory": f"memory://{uuid.uuid4().hex}/mine"}
    asked = configured(run=given[place])
    run = new_run(asked, home_runs)
    assert run.name == "mine"
    assert run.uri == (f"{home_runs}/mine" if place == "name" else given[place])
    run.save_config()
    with pytest.raises(ValueError, match=f"^run '{given[place]}' exists; go on with it by --resume {given[place]}, or"):
        new_run(asked, home_runs)
    with pytest.raises(ValueError, match=f"go on with it by resume: {given[place]}, or name another$"):
        new_run(asked, home_runs, "resume: ")


def test_a_saved_configuration_is_the_one_that_the_run_had(saved: Run) -> None:
    assert saved_config(saved.uri) == saved.config
    elsewhere = Run(f"memory://{uuid.uuid4().hex}/run", saved.config, resumed=False)
    elsewhere.save_config()
    assert saved_config(elsewhere.uri) == saved.config


def test_a_run_keeps_the_id_of_its_mlflow_run(saved: Run) -> None:
    assert mlflow_run(saved.uri) is None
    save_mlflow_run(saved.uri, "0123abcd")
    assert mlflow_run(saved.uri) == "0123abcd"
    save_mlflow_run(saved.uri, None)
    assert mlflow_run(saved.uri) is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"run_id": 7}', '{"run_id": "../x"}', "{"])
def test_a_damaged_record_of_the_mlflow_run_is_named_with_its_remedy(saved: Run, content: str) -> None:
    at = places.join(saved.uri, "tracking.json")
    places.write_text(at, content)
    with pytest.raises(
        DamagedError, match=rf"^{re.escape(at)} is damaged \(.+\); remove it, and the run goes on in a n"
    ):
        mlflow_run(saved.uri)


@pytest.mark.parametrize("name", ["first", "./runs/first", "{uri}", "{uri}/"])
def test_a_run_goes_on_by_its_name_its_path_or_its_uri(
    saved: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = places.read_text(places.join(saved.uri, CONFIG))
    run = resume_run(name.format(uri=saved.uri), str(tmp_path / "runs"), None, {})
    assert os.path.abspath(run.uri) == saved.uri  # noqa: PTH100
    assert run.config == saved.config
    assert run.resumed
    assert places.read_text(places.join(saved.uri, CONFIG)) == before


def test_a_run_that_is_none_cannot_go_on(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match="runs/nothing is not a run: there is nothing"):
        resume_run("nothing", str(tmp_path / "runs"), None, {})
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotARun, match=r"empty is not a run: it has no config\.yaml"):
        resume_run(str(tmp_path / "empty"), str(tmp_path / "runs"), None, {})


def test_a_run_on_examples_goes_on_by_its_own_command(tmp_path: Path) -> None:
    (tmp_path / "runs" / "judge").mkdir(parents=True)
    (tmp_path / "runs" / "judge" / "finetune.yaml").write_text("method: reward-model\nsteps: 4\n")
    (tmp_path / "runs" / "judges").mkdir()  # near, and not what was meant
    with pytest.raises(NotARun) as refused:
        resume_run("judge", str(tmp_path / "runs"), None, {})
    assert str(refused.value) == (
        f"judge is a run of rlvf reward-model; its model is {tmp_path}/runs/judge/model; go on with it by: rlvf "
        "reward-model --resume judge"
    )
    for name in ("newest", "other"):
        with pytest.raises(NotARun, match=r"none of the runs at .*/runs is of rlvf train$"):
            runs.known_run(name, str(tmp_path / "runs"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("steps", "31"),
        ("cluster.generators", "4"),
        ("cluster.scheduler", "tcp://10.0.0.1:8786"),
        ("placement.generate", "GENERATOR,CUDA"),
        ("tracking.uri", "http://10.0.0.1:5000"),
        ("checkpoint.keep_last", "9"),
        ("policy.device", "cuda"),
        ("optimizer.lr", "1e-5"),
        ("staleness", "0"),
        ("staleness", "4"),
        ("algorithm.correction", "mask"),
        ("sampling.max_tokens", "9"),
    ],
)
def test_more_steps_other_machines_and_other_bookkeeping_are_allowed(saved: Run, path: str, value: str) -> None:
    run = resume_run(saved.uri, "", None, {path: value})
    assert run.config == read_config(
        TrainConfig, file=None, overrides={path: value}, base=yaml.safe_load(to_yaml(saved.config))
    )
    assert run.config != saved.config


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("seed", "1", "seed: saved 0, now 1"),
        ("problems", "/data/other.csv", "problems.path: saved '/data/sums.csv', now '/data/other.csv'"),
        ("held_out", "7", "held_out: saved None, now 7"),
        ("batch.prompts", "8", "batch.prompts: saved 32, now 8"),
        ("algorithm.name", "rloo", "algorithm.name: saved 'reinforce', now 'rloo'"),
        ("algorithm.ratio_cap", "0.2", "algorithm.ratio_cap: saved 0.1, now 0.2"),
        ("policy.model", "other", "policy.model: saved 'tiny', now 'other'"),
        ("policy.dtype", "bfloat16", "policy.dtype: saved 'auto', now 'bfloat16'"),
        ("sampling.temperature", "0.5", "sampling.temperature: saved 1.0, now 0.5"),
        ("optimizer.betas", "0.5,0.9", f"optimizer.betas: saved {TrainConfig().optimizer.betas}, now (0.5, 0.9)"),
        ("warm_up.seed", "5", "warm_up.seed: saved 0, now 5"),
    ],
)
@pytest.mark.parametrize("by", ["option", "file"])
def test_what_contradicts_the_saved_configuration_is_refused(
    saved: Run, tmp_path: Path, by: str, path: str, value: str, said: str
) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(f"steps: 40\n{path}: {value}\n")
    with pytest.raises(OptionError) as refused:
        resume_run(saved.uri, "", str(file) if by == "file" else None, {path: value} if by == "option" else {})
    assert str(refused.value) == f"{saved.uri} cannot be resumed with {said}; leave it out, or start a new run"


def test_older_references_than_a_run_has_kept_are_refused(tmp_path: Path) -> None:
    uri = str(tmp_path / "runs" / "first")
    kl = {"algorithm.kl.coefficient": "0.01", "algorithm.kl.reference_every": "5"}
    config = read_config(TrainConfig, file=None, overrides={"run": uri, "staleness": "2", **kl})
    Run(uri, config, resumed=False).save_config()
    assert resume_run(uri, "", None, {"staleness": "1"}).config.staleness == 1
    with pytest.raises(OptionError) as refused:
        resume_run(uri, "", None, {"staleness": "3"})
    assert str(refused.value) == (
        f"--staleness 3: with algorithm.kl.reference_every {uri} has kept the references of staleness 2, and older "
        "ones are gone; give less, or leave it out"
    )


def test_what_is_said_again_but_not_differently_contradicts_nothing(saved: Run) -> None:
    same = {"algorithm.ratio_cap": "0.1", "problems": "/data/sums.csv", "seed": "0", "run": saved.uri}
    assert resume_run(saved.uri, "", None, same).config == saved.config


def test_fewer_steps_than_were_made_are_refused(saved: Run, tmp_path: Path) -> None:
    for step in (11, 12):
        (tmp_path / "made").mkdir()
        (tmp_path / "made" / "weights").write_text("w")
        store.write_folder(places.join(saved.uri, "state", str(step)), tmp_path / "made", move=True)
    with pytest.raises(OptionError, match=r"^--steps 3: .* has made 12 already; give more, or leave it out$"):
        resume_run(saved.uri, "", None, {"steps": "3"})
    assert resume_run(saved.uri, "", None, {"steps": "12"}).config.steps == 12
    with pytest.raises(OptionError, match=r"^--optimizer.lr: .* has made all of its 12 steps; give more --steps, too$"):
        resume_run(saved.uri, "", None, {"steps": "12", "optimizer.lr": "30"})
    assert resume_run(saved.uri, "", None, {"steps": "13", "optimizer.lr": "30"}).config.optimizer.lr == 30


def test_two_runs_cannot_be_meant_at_once(saved: Run, tmp_path: Path) -> None:
    home_runs = str(tmp_path / "runs")
    with pytest.raises(
        OptionError, match=r"^--resume first and run 'second' are different runs; leave one of them out$"
    ):
        resume_run("first", home_runs, None, {"run": "second"})
    assert resume_run("first", home_runs, None, {"run": "first"}).uri == saved.uri


def test_a_run_that_was_moved_goes_on_where_it_is_now(saved: Run, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    Path(saved.uri).rename(moved)
    assert resume_run(str(moved), "", None, {}).uri == str(moved)


def test_what_may_change_are_settings_and_no_other_setting_begins_as_one_of_them() -> None:
    options = known_options(TrainConfig)
    assert set(MAY_CHANGE) <= set(options)
    for allowed in MAY_CHANGE:
        assert all(path == allowed or path.startswith(f"{allowed}.") for path in options if path.startswith(allowed))
