"""The report of runs on examples."""

import json
import math
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from flows.cli import main
from flows.report.finetuned import perplexity
from flows.report.html import write_report
from flows.run.diverged import DivergedError
from flows.start.finetunes import known_run_or_finetune, made_model
from infra.runs.checkpoints import NotARun
from infra.runs.metric_log import MetricLog
from infra.runs.record import read_record
from infra.storage import place
from tests.flows.on_examples import tune, write_examples
from tests.flows.report.read_back import Page

pytestmark = pytest.mark.slow

SECTIONS = ["learning", "model", "machines", "config", "versions", "links"]
MACHINES = ["pace", "workers", "timeline"]
HOSTILE = "<script>alert(1)</script>{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_examples(tmp_path_factory.mktemp("examples"))


@pytest.mark.parametrize(
    ("method", "charts", "learned"),
    [
        ("sft", ["loss", "gradient"], ["perplexity", "nats per token"]),
        ("dpo", ["loss", "accuracy", "margin", "rewards", "gradient"], ["accuracy", "0.500 → 1.000", "-log sigmoid"]),
        ("reward-model", ["loss", "accuracy", "margin", "gradient"], ["accuracy", "→ 1.000"]),
    ],
)
def test_a_run_on_examples_ends_with_a_report_and_says_how_to_use_its_model(
    lab: Any, files: Path, method: str, charts: list[str], learned: list[str]
) -> None:
    run = tune(lab, method, files, steps="14", evaluate_every="7", tracking__report="true")
    page = Page(run / "report.html")
    assert page.sections == SECTIONS
    assert page.figures == [*charts, *MACHINES]
    assert all(address.startswith("data:") for address in page.loads)
    for words in (
        *("finished", "14 of 14", "none died with its worker", "finetune.yaml", "12 held-out examples"),
        *(*learned, str(run / "model"), f"rlvf {method} --resume {run} --steps N", "torch"),
    ):
        assert words in page.text
    assert ">held out</text>" in (run / "report.html").read_text()
    with Image.open(run / "loss.png") as image:
        assert image.format == "PNG"
    client, logged = lab.mlflow(run)
    there = {file.path for file in client.list_artifacts(logged.info.run_id)}
    assert there == {"report.html", "pictures"}
    assert [file.path for file in client.list_artifacts(logged.info.run_id, "pictures")] == ["pictures/loss.png"]
    assert logged.data.tags["mlflow.note.content"].startswith("Training of **")
    assert f"by `rlvf {method}`" in logged.data.tags["mlflow.note.content"]
    links = [str(attrs["href"]) for tag, attrs in page.elements if tag == "a"]
    assert any(f"/runs/{logged.info.run_id}" in link for link in links)
    assert any("/runs/flow-run/" in link for link in links)
    assert json.loads((run / "result.json").read_text())["report"] == str(run / "report.html")
    # what it tells to type names the model that was made
    assert made_model(str(run), str(run.parent), rewards=method == "reward-model") == str(run / "model")
    option = f"reward-model:{run}" if method == "reward-model" else f"--policy {run}"
    assert option in page.text


def test_the_command_reports_it_by_name_and_as_the_newest(
    lab: Any, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tune(lab, "dpo", files, steps="2")
    assert not (run / "report.html").exists()  # tracking.report false
    assert (run / "loss.png").exists()
    monkeypatch.setenv("RLVF_HOME", str(lab.home))

    def report(*words: str) -> str:
        capsys.readouterr()
        main(["report", *words])
        return capsys.readouterr().out.strip()

    assert report(run.name) == report("newest") == str(run / "report.html")
    out = tmp_path / "new" / "first.html"
    assert json.loads(report(str(run), "--out", str(out), "--json")) == {"report": str(out)}
    assert {file.name for file in out.parent.iterdir()} == {"first.html", "first-loss.png"}
    trained = Path(lab.train(steps="1").run)
    assert report("newest") == str(trained / "report.html")
    tune(lab, "dpo", files, resume=run.name, steps="3")
    assert report("newest") == str(run / "report.html")
    page = Page(run / "report.html")
    assert "3 of 3" in page.text
    assert ", in 2 sessions" in page.text


def test_a_name_that_no_run_has_is_refused_and_newest_without_any(tmp_path: Path) -> None:
    for name, said in (("none", "is not a run: there is nothing"), ("newest", "there is no run at")):
        with pytest.raises(NotARun, match=said):
            known_run_or_finetune(name, str(tmp_path))


def test_one_that_fails_is_reported_too(lab: Any, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(learned: Any) -> None:
        if learned.step == 2:
            raise DivergedError(HOSTILE)

    monkeypatch.setattr("flows.sft.stop_if_diverged", fail)
    name = lab.new_name()
    with pytest.raises(DivergedError):
        tune(lab, "sft", files, run=name, steps="20", tracking__report="true")
    run = lab.run_folder(name)
    page = Page(run / "report.html")
    assert "script" not in page.tags
    for words in ("failed", "2 of 20", HOSTILE, f"rlvf sft --resume {run}", "It is made at the end", "before training"):
        assert words in page.text
    assert lab.mlflow(run)[1].info.status == "FAILED"


def test_one_in_a_bucket_is_reported_from_anywhere(
    lab: Any, files: Path, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"{s3}/deep/shown"
    tune(lab, "sft", files, run=uri, steps="2", tracking__report="true")
    assert place.exists(f"{uri}/report.html")
    assert place.exists(f"{uri}/metrics.jsonl")
    shutil.rmtree(lab.record_folder(uri))  # as on a machine that has never seen it
    monkeypatch.setenv("RLVF_HOME", str(tmp_path / "elsewhere"))
    capsys.readouterr()
    main(["report", uri])
    page = Page(Path(capsys.readouterr().out.strip()))
    assert page.sections == SECTIONS
    assert "2 of 2" in page.text
    assert f"rlvf eval --policy {uri}" in page.text
    assert "from_pretrained" not in page.text  # it lies on no disk


def written(run: Path, prefix: str, rows: Mapping[int, Mapping[str, float]]) -> Page:
    """The report of a run of which there are these metrics, by step, and nothing else."""
    log = MetricLog(run / "metrics.jsonl")
    for step, metrics in rows.items():
        log.append(step, {f"{prefix}/{name}": of for name, of in metrics.items()})
    return Page(write_report(str(run), read_record(str(run), run), run / "report.html"))


def test_perplexity_is_of_the_mean_loss(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    logprobs = rng.uniform(-3, 0, 50)  # of the tokens that are held out
    page = written(tmp_path, "sft", {0: {"held_out_loss": float(-logprobs.mean())}, 1: {"loss": 1.0}})
    assert f"{np.prod(np.exp(-logprobs)) ** (1 / 50):.4g}" in page.text  # the inverse of their geometric mean
    assert "before training" in page.text
    found = perplexity({0: 709.0, 1: 1e4, 2: math.nan, 3: 0.0})
    assert (found[1], found[3]) == (math.inf, 1.0)
    assert math.isnan(found[2])
    assert found[0] == pytest.approx(np.exp(np.float64(709.0)))


@pytest.mark.parametrize("settings", ["", "[a list", "method: 3", "policy: '</pre><script>'\nsteps: 9\n", "\xff\xfe"])
def test_a_report_is_made_of_what_there_is(tmp_path: Path, settings: str) -> None:
    (tmp_path / "finetune.yaml").write_text(settings, encoding="latin-1")
    rows = {1: {"loss": math.inf, "grad_norm": 1.0}, 2: {"loss": 1e300}, 3: {"loss": 0.5, "margin": math.nan}}
    page = written(tmp_path, "reward_model", rows)
    assert page.sections == SECTIONS
    assert page.figures == ["loss", "gradient"]
    assert "script" not in page.tags
    assert "0.500" in page.text
    assert ("3 of 9" in page.text) == ("steps" in settings)


def test_a_run_that_names_nothing_of_rewards_has_no_completions_to_show(tmp_path: Path) -> None:
    page = written(tmp_path, "dpo", {1: {"loss": 0.7}})
    assert "#samples" not in {attrs.get("href") for _, attrs in page.elements}
    assert "were kept" not in page.text


def test_what_is_typed_survives_a_name_with_a_blank(tmp_path: Path) -> None:
    run = tmp_path / "my run"
    (run / "model").mkdir(parents=True)
    (run / "model" / "config.json").write_text("{}")
    page = written(run, "sft", {1: {"loss": 0.7}})
    typed = [line for line in page.text.splitlines() if "rlvf eval --policy" in line]
    assert any(shlex.split(line.partition("rlvf ")[2])[2] == str(run) for line in typed)
