"""`rlvf runs`: the runs of a storage, the newest first."""

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

import pytest

from flows.cli import main
from flows.commands import runs as module
from flows.config import TrainConfig
from flows.finetune_config import SftConfig
from flows.options.reading import read_config, to_yaml
from flows.start.saved import write_config
from infra.runs.metric_log import MetricLog
from infra.storage import place
from infra.storage.claim import Claim
from infra.storage.lock import held
from tests.infra.storage.owners import of_another_machine

pytestmark = pytest.mark.usefixtures("own_signals_and_environment", "home_folder")
Listing = Callable[..., tuple[list[str], list[str]]]


@pytest.fixture
def listing(capsys: pytest.CaptureFixture[str]) -> Listing:
    """Gives `rlvf runs` these words; the lines of stdout and those of stderr."""

    def run(*words: str) -> tuple[list[str], list[str]]:
        main(["runs", *words])
        shown = capsys.readouterr()
        return shown.out.splitlines(), shown.err.splitlines()

    return run


def make(
    home: Path, name: str, minute: int, lines: Mapping[int, Mapping[str, float]] | None = None, status: str = "finished"
) -> Path:
    """A run of 150 steps that was begun in that minute."""
    run = home / "runs" / name
    write_config(str(run), read_config(TrainConfig, file=None, overrides={"policy": "org/model"}))
    began = datetime(2026, 1, 1, 12, minute).timestamp()
    os.utime(run / "config.yaml", (began, began))
    log = MetricLog(run / "metrics.jsonl")
    for step, metrics in (lines or {}).items():
        log.append(step, metrics)
    (run / "about.json").write_text(json.dumps({"status": status}))
    return run


def test_there_is_none_yet(listing: Listing, home_folder: Path) -> None:
    assert listing() == ([], [f"rlvf: there is no run at {home_folder}/runs yet"])
    assert listing("--json") == (['{"runs": []}'], [])


def test_each_has_its_steps_and_figures_and_the_newest_is_the_first(listing: Listing, home_folder: Path) -> None:
    make(home_folder, "old", 1, {0: {"eval/reward": 0.25}, 1: {"reward/mean": 0.5}, 2: {"reward/mean": 0.75}}, "failed")
    make(home_folder, "new", 5, {150: {"reward/mean": 0.9, "eval/reward": 1.0}, 151: {"sync/bytes": 1.0}})
    make(home_folder, "begun", 3)
    said, complaints = listing()
    assert complaints == []
    assert [line.split() for line in said] == [
        "run state steps reward held out started model".split(),
        "new finished 150/150 0.900 1.000 2026-01-01 12:05 org/model".split(),
        "begun finished 0/150 - - 2026-01-01 12:03 org/model".split(),
        "old failed 2/150 0.750 0.250 (v0) 2026-01-01 12:01 org/model".split(),
    ]
    (of_program,) = listing("--json")[0]
    old = json.loads(of_program)["runs"][2]
    assert (old["run"], old["method"], old["held_out_step"], old["loss"]) == (
        f"{home_folder}/runs/old",
        "train",
        0,
        None,
    )


def test_a_run_on_examples_has_a_loss(listing: Listing, home_folder: Path) -> None:
    run = home_folder / "runs" / "shown"
    MetricLog(run / "metrics.jsonl").append(7, {"sft/loss": 1.5, "sft/held_out_loss": 2.5})
    (run / "finetune.yaml").write_text(f"method: sft\n{to_yaml(SftConfig(steps=9))}")
    assert listing()[0][1].split()[:6] == ["shown", "unknown", "7/9", "loss", "1.500", "2.500"]
    assert json.loads(listing("--json")[0][0])["runs"][0]["method"] == "sft"


def test_one_that_is_held_runs_and_one_without_a_word_is_lost(listing: Listing, home_folder: Path) -> None:
    run = make(home_folder, "one", 1, status="running")

    def state() -> str:
        return listing()[0][1].split()[1]

    assert state() == "lost"
    with held(str(run), print):
        assert state() == "running"
    assert state() == "lost"
    claim = run / "lock" / "00000009.json"
    claim.write_text(json.dumps(asdict(of_another_machine())))
    assert state() == "running"
    long_ago = time.time() - 400
    os.utime(claim, (long_ago, long_ago))  # it is asleep
    assert state() == "lost"
    claim.write_text(json.dumps(asdict(replace(Claim.of_this_process(), started=1.0, state="held"))))
    assert state() == "lost"  # another process has that id now


def test_damaged_and_foreign_folders_are_named_and_stop_nothing(listing: Listing, home_folder: Path) -> None:
    make(home_folder, "whole", 1, {3: {"reward/mean": 0.5}})
    cut = make(home_folder, "cut", 2)
    (cut / "config.yaml").write_text("\n".join((cut / "config.yaml").read_text().splitlines()[:9]))
    torn = make(home_folder, "torn", 3, {1: {"reward/mean": 0.5}})
    with (torn / "metrics.jsonl").open("a") as file:
        file.write('{"reward/mean": 0.7}\n{"step": 2, "time": 1, "reward/mean": 0.8')
    fifo = make(home_folder, "fifo", 4)
    os.mkfifo(fifo / "metrics.jsonl")
    for name in ("a", "b", "c", "d", "of-a-store-0123456789abcdef"):
        (home_folder / "runs" / name).mkdir()
    (home_folder / "runs" / "d" / "config.yaml").symlink_to("config.yaml")  # which no user can read
    (home_folder / "runs" / "notes.txt").write_text("")
    said, complaints = listing()
    rows = {line.split()[0]: line.split()[1:4] for line in said}
    assert rows["whole"] == ["finished", "3/150", "0.500"]
    assert rows["torn"] == ["finished", "1/150", "0.500"]
    assert rows["cut"] == ["finished", "0/?", "-"]
    assert rows["fifo"] == ["finished", "0/150", "-"]
    assert rows.keys() == {"run", "whole", "torn", "cut", "fifo"}
    assert complaints[0].startswith(f"rlvf: cut: {home_folder}/runs/cut/config.yaml is damaged: its last line")
    assert complaints[1].startswith(f"rlvf: fifo: {home_folder}/runs/fifo/metrics.jsonl: is no file but a FIFO")
    assert complaints[2:] == ["rlvf: no runs, as they have no config.yaml to read: a, b, c and 1 more"]


def test_of_many_the_newest_alone_are_read(
    listing: Listing, home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        make(home_folder, f"r{number}", number)
    read = []
    monkeypatch.setattr(module, "read_about", lambda uri, _: read.append(uri) or {})
    said, complaints = listing()
    assert [line.split()[0] for line in said[1:]] == [f"r{number}" for number in reversed(range(10, 30))]
    assert complaints == ["rlvf: 10 older runs: rlvf runs --all"]
    assert len(read) == 20
    assert len(listing("--all")[0]) == 31


def test_another_storage_is_listed(listing: Listing, home_folder: Path) -> None:
    make(home_folder, "here", 1)
    storage = f"memory://{uuid.uuid4().hex}"
    run = f"{storage}/runs/elsewhere"
    write_config(run, TrainConfig(steps=9))
    first, second = (f'{{"step": {step}, "time": 1, "reward/mean": 0.25}}\n' for step in (1, 2))
    place.write_text(f"{run}/metrics.jsonl", first)
    place.write_text(f"{run}/tail/metrics.jsonl", f"{len(first)}\n{second}")
    said, complaints = listing("--storage", storage)
    assert said[1].split()[:5] == ["elsewhere", "unknown", "2/9", "0.250", "-"]
    assert (len(said), complaints) == (2, [])
