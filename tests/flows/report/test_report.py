"""The report of real runs, read back as a browser would."""

import gzip
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from flows.cli import main
from flows.report.html import CUT, write_report
from flows.run.diverged import DivergedError
from flows.start.runs import local_folder
from infra.cluster.timeline import read_sessions
from infra.runs.record import read_record
from infra.runs.rollouts import kept_steps, read_rollouts, write_rollouts
from infra.storage import place, store
from tests.flows.report.read_back import Page

pytestmark = pytest.mark.slow

SECTIONS = ["learning", "samples", "machines", "config", "versions", "links"]
LEARNING = ["reward", "sampled", "entropy", "lengths", "shares", "kl-behaviour", "gradient", "groups"]
MACHINES = ["stages", "workers", "timeline", "staleness", "bytes"]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>{{ 7 * 7 }}"


@pytest.fixture(scope="module")
def reported(lab: Any) -> Path:
    """The folder of a run that ended with a report."""
    return Path(lab.train(steps="3", tracking__report="true", tracking__rollouts_every="1").run)


def report(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main(["report", *words])
    return capsys.readouterr().out.strip()


def test_a_run_ends_with_a_report_that_is_whole_in_itself(lab: Any, reported: Path) -> None:
    page = Page(reported / "report.html")
    assert page.sections == SECTIONS
    assert all(address.startswith("data:") for address in page.loads), page.loads
    assert page.tags.isdisjoint({"script", "iframe", "object", "embed", "base", "form"})
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert "url(" not in (reported / "report.html").read_text().split("</style>")[0]
    for word in ("finished", "3 of 3", "none died with its worker", "torch", "half-right", "sums.csv"):
        assert word in page.text
    with Image.open(reported / "reward.png") as image:
        assert image.format == "PNG"
        assert len(image.getcolors(2**24) or []) > 10
    assert page.figures == [*LEARNING, "graph", *MACHINES]  # what was learned first
    assert page.tags >= {"svg", "path", "text"}
    client, logged = lab.mlflow(reported)
    assert {file.path for file in client.list_artifacts(logged.info.run_id)} >= {"report.html", "pictures"}
    pictures = {file.path for file in client.list_artifacts(logged.info.run_id, "pictures")}
    assert pictures == {"pictures/reward.png", "pictures/graph.png"}
    links = [str(attrs["href"]) for tag, attrs in page.elements if tag == "a"]
    assert any(f"/runs/{logged.info.run_id}" in link for link in links)
    assert any("/runs/flow-run/" in link for link in links)
    assert not any(link.endswith("/status") for link in links)  # the dashboard is gone with the cluster
    assert logged.data.tags["mlflow.note.content"].startswith("Reinforcement learning of **")
    assert all("?workflowType=machine_learning" in link for link in links if logged.info.run_id in link)


def test_every_completion_of_every_step_is_kept(lab: Any, reported: Path) -> None:
    assert kept_steps(str(reported)) == [1, 2, 3]
    generated, mean = lab.metrics(reported, "groups/generated"), lab.metrics(reported, "reward/mean")
    for step in (1, 2, 3):
        rows = read_rollouts(str(reported), step)
        assert len(rows) == generated[step] * 4
        assert sum(row["reward"] for row in rows) / len(rows) == pytest.approx(mean[step])
        assert set(rows[0]) == {
            "group", "prompt", "target", "source", "completion", "reward", "reason", "error", "version", "tokens",
            "worker",
        }  # fmt: skip
        assert {row["worker"] for row in rows} == {"generator-0"}
        assert all(0 <= step - 1 - row["version"] <= 1 for row in rows)
        assert all(1 <= row["tokens"] <= 12 for row in rows)


def test_bytes_and_spans_are_those_of_the_run(lab: Any, reported: Path) -> None:
    published = lab.metrics(reported, "sync/bytes")
    manifest = store.read_manifest(str(reported / "weights" / "v3"))
    assert (
        published[3]
        == manifest.size
        == sum(file.stat().st_size for file in (reported / "weights" / "v3").iterdir() if file.name != "manifest.json")
    )
    assert lab.metrics(reported, "sync/ratio")[3] > 1
    fetched = lab.metrics(reported, "sync/fetched_bytes")
    assert sum(fetched.values()) >= published[3]
    assert lab.metrics(reported, "sync/generator-0/fetched_bytes") == fetched
    assert max(lab.metrics(reported, "sync/load_seconds").values()) > 0
    (spans,) = read_sessions((reported / "timeline.jsonl").read_text())
    assert {(span.worker, span.call) for span in spans} == {
        ("generator-0", "generate"), ("generator-0", "evaluate"), ("verifier-0", "verify"), ("trainer", "train"),
        ("trainer", "publish"),
    }  # fmt: skip
    by_worker = [
        sorted((span.start, span.end) for span in spans if span.worker == name and span.call != "publish")
        for name in ("trainer", "generator-0")
    ]
    for each in by_worker:  # one call at a time
        assert all(start >= end - 0.05 for (_, end), (start, _) in pairwise(each))
    assert not any(span.lost for span in spans)


def test_the_command_reports_by_name_or_address(
    lab: Any, reported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLVF_HOME", str(lab.home))
    assert report(capsys, reported.name) == str(reported / "report.html")
    out = tmp_path / "new" / "first.html"
    assert json.loads(report(capsys, str(reported), "--out", str(out), "--json")) == {"report": str(out)}
    assert Page(out).sections == SECTIONS
    assert {file.name for file in out.parent.iterdir()} == {
        "first.html", "first-reward.png",
    }  # fmt: skip


def test_hostile_completions_are_only_text(reported: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(reported, run)
    (row, *_) = read_rollouts(str(run), 3)
    write_rollouts(
        str(run), 3,
        [
            {**row, "completion": HOSTILE, "prompt": HOSTILE, "target": HOSTILE, "source": HOSTILE, "reason": HOSTILE},
            {**row, "completion": "x" * 10**5, "reason": "long"},
            {**row, "reason": "verifier_error", "reward": None, "error": f"my_reward.py:8: {HOSTILE}"},
            {**row, "completion": "\0\x1b[31m\u202e\ud800", "reason": "odd", "reward": None},
        ],
    )  # fmt: skip
    about = json.loads((run / "about.json").read_text())
    about["links"]["evil"] = ["javascript:alert(3)", HOSTILE]
    about.update(
        status='"><script>',
        why=HOSTILE,
        versions={HOSTILE: HOSTILE},
        workers={HOSTILE: [HOSTILE]},
        excluded={HOSTILE: HOSTILE},
    )
    (run / "about.json").write_text(json.dumps(about))
    (run / "config.yaml").write_text("policy: '</pre><script>'\n")
    out = write_report(str(run), read_record(str(run), run), tmp_path / "hostile.html")
    page = Page(out)
    assert "script" not in page.tags
    assert [attrs for tag, attrs in page.elements if tag == "img" and not str(attrs["src"]).startswith("data:")] == []
    assert not any(str(attrs.get("href", "")).startswith("javascript") for _, attrs in page.elements)
    assert page.text.count(HOSTILE) >= 9
    assert f"{HOSTILE} got no more leases: {HOSTILE}" in page.text
    assert f"my_reward.py:8: {HOSTILE}" in page.text
    assert "49" not in page.text.split("Step 3")[1].split("Step 2")[0]
    assert "x" * CUT in page.text
    assert "x" * (CUT + 1) not in page.text
    assert f"{10**5 - CUT:,} more characters" in page.text
    assert "reward unknown" in page.text


def test_an_unfinished_run_is_reported_and_one_without_a_step_refused(
    reported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "going"
    run.mkdir()
    shutil.copy(reported / "config.yaml", run)

    def refused(name: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            report(capsys, name)
        assert stopped.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        return line

    assert refused(str(run)) == f"rlvf: {run} has no step to report yet; try again when one is logged"
    assert "is not a run: there is nothing" in refused("none")
    # two steps on, killed in the middle of a line: no picture, timeline or result was ever written
    lines = (reported / "metrics.jsonl").read_text().splitlines(keepends=True)
    (second,) = [at for at, line in enumerate(lines) if "reward/mean" in line and json.loads(line)["step"] == 2]
    (run / "metrics.jsonl").write_text("".join(lines[: second + 1]) + lines[second + 1][:20])
    (run / "rollouts").mkdir()
    (run / "rollouts" / "1.jsonl.gz").write_bytes(gzip.compress(b'{"cut'))
    page = Page(Path(report(capsys, str(run))))
    assert page.sections == SECTIONS
    assert page.figures == [name for name in [*LEARNING, *MACHINES] if name not in ("workers", "timeline")]
    assert "1.jsonl.gz is damaged" in page.text
    assert "2 of 3" in page.text


def test_a_run_that_fails_is_reported_too(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(learned: Any) -> None:
        if learned.step == 2:
            raise DivergedError(f"<i>{HOSTILE}</i>\nsecond line")

    monkeypatch.setattr("flows.train.stop_if_diverged", fail)
    name = lab.new_name()
    with pytest.raises(DivergedError):
        lab.train(run=name, steps="20", tracking__report="true")
    page = Page(lab.run_folder(name) / "report.html")
    assert "script" not in page.tags
    for words in ("failed", "2 of 20", f"<i>{HOSTILE}</i>", f"rlvf train --resume {lab.run_folder(name)}"):
        assert words in page.text
    client, logged = lab.mlflow(lab.run_folder(name))
    assert "report.html" in {file.path for file in client.list_artifacts(logged.info.run_id)}


def test_a_report_that_cannot_be_made_is_said_and_the_run_ends_well(
    lab: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flows.report.html.TEMPLATES", Path("/nowhere"))
    result = lab.train(steps="1", tracking__report="true", tracking__rollouts_every="0")
    said = capsys.readouterr().err
    assert "warning: no report could be made (TemplateNotFound" in said
    assert f"rlvf report {Path(result.run).name}" in said
    assert kept_steps(result.run) == []
    assert lab.mlflow(Path(result.run))[1].info.status == "FINISHED"


def test_a_run_in_a_bucket_is_reported_from_anywhere(
    lab: Any, s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = f"{s3}/deep/reported"
    lab.train(run=uri, steps="2", tracking__report="true")
    assert place.exists(f"{uri}/report.html")
    shutil.rmtree(lab.record_folder(uri))  # as on a machine that has never seen it
    monkeypatch.setenv("RLVF_HOME", str(tmp_path / "elsewhere"))
    written = Path(report(capsys, uri))
    assert written == local_folder(uri, tmp_path / "elsewhere") / "report.html"
    assert Page(written).sections == SECTIONS
    assert "2 of 2" in Page(written).text
    # whose log another machine goes on with
    lab.train(resume=uri, run=uri, steps="3", home=lab.home)
    assert list(lab.metrics(lab.record_folder(uri), "reward/mean")) == [1, 2, 3]
    assert list(lab.metrics(lab.record_folder(uri), "eval/pass_at_1")) == [0, 2, 3]


def test_a_resumed_run_says_where_it_goes_on_and_with_what_and_its_report_is_of_the_whole_run(
    lab: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    first = lab.train(steps="2", tracking__report="true")
    about = Path(first.run, "about.json")
    began = json.loads(about.read_text())["began"]
    assert "going on" not in capsys.readouterr().err
    lab.train(resume=first.run, run=first.run, steps="3", tracking__report="true", optimizer__lr="1e-4")
    said = capsys.readouterr().err.splitlines()
    at = said.index("going on from step 2 of 3")
    assert said[at + 1] == "other than before: steps: saved 2, now 3"
    assert said[at + 2].startswith("other than before: optimizer.lr: saved ")
    assert not any(line.startswith("other than before") for line in said[at + 3 :])
    now = json.loads(about.read_text())
    assert now["began"] == began < now["ended"]
    assert ", in 2 sessions" in Page(Path(first.run, "report.html")).text
    ended = json.loads(Path(first.run, "result.json").read_text())
    lab.train(resume=first.run, run=first.run, steps="3", optimizer__lr="1e-4")
    resumed = f"going on from step 3 of 3; more steps: rlvf train --resume {Path(first.run).name} --steps N"
    assert resumed in capsys.readouterr().err.splitlines()
    # no step is made: the pace is that of the steps that were
    again = json.loads(Path(first.run, "result.json").read_text())
    assert {again[name] == ended[name] for name in ("rollouts_per_second", "stages", "steps")} == {True}
    assert again["rollouts_per_second"] > 0
