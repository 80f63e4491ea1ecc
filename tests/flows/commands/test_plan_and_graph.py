"""`rlvf plan` and `rlvf graph`."""

import json
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from PIL import Image

from flows.cli import main
from flows.commands import plan
from flows.config import TrainConfig
from flows.planner import probe
from flows.planner.applied import apply_to_file
from flows.planner.drawing import Drawing, Node, mermaid
from flows.report.html import write_report
from flows.start.saved import saved_config
from infra.runs.record import read_record
from infra.storage.lock import acquire
from tests.flows.planner.kept_run import keep_run, keep_version
from tests.flows.report.read_back import Page

pytestmark = pytest.mark.usefixtures("own_signals_and_environment")
Said = Callable[..., str]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Said:
    """Gives a command and returns what it prints."""
    monkeypatch.setenv("RLVF_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> str:
        main(words)
        return capsys.readouterr().out

    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose slow generator holds up every step."""
    return keep_run(tmp_path / "run", generate={"fast": 0.5, "slow": 12.0})


def test_a_graph_is_mermaid_s_text(said: Said) -> None:
    text = said("graph", "ppo")
    assert text.startswith("%% ppo\nflowchart LR\n")
    assert '    generate["<b>generate</b><br>actor<br>each lease<br>on GENERATOR"]\n' in text
    assert '    value -->|"values"| train_critic\n' in text
    assert said("graph").startswith("%% reinforce\n")
    for option in ("--kl", "--algorithm.kl"):
        calls = json.loads(said("graph", "grpo", option, "0.01", "--json"))["calls"]
        assert "reference" in [call["name"] for call in calls]
    names = [call["name"] for call in json.loads(said("graph", "remax", "--json"))["calls"]]
    assert sorted(names) == ["generate", "greedy", "train", "verify"]


def test_an_algorithm_of_ones_own_is_drawn_from_its_file(said: Said, tmp_path: Path) -> None:
    text = "from rl.algorithms.ppo import Ppo\n\nclass Mine(Ppo):\n    lam: float = 0.9\n"
    (tmp_path / "my.py").write_text(text)
    drawn, of_ppo = said("graph", "my.py:Mine", "--kl", "0.01"), said("graph", "ppo", "--kl", "0.01")
    assert drawn.splitlines() == ["%% my.py:Mine", *of_ppo.splitlines()[1:]]


def test_a_run_s_graph_has_what_its_calls_took(said: Said, run: Path) -> None:
    text = said("graph", "--run", str(run))
    assert "<b>train</b><br>actor<br>1 s a step in 1 call<br>25% of 4 s<br>on trainer" in text
    assert "<b>verify</b><br>1 s a step in 4 calls<br>25% of 4 s<br>on judge" in text
    (generate,) = [
        one for one in json.loads(said("graph", "--run", str(run), "--json"))["calls"] if one["name"] == "generate"
    ]
    assert generate["workers"] == ["fast", "slow"]
    assert generate["seconds"] == pytest.approx(2 * 0.5 + 2 * 12)


@pytest.mark.slow
def test_a_picture_is_drawn(said: Said, run: Path, tmp_path: Path) -> None:
    assert said("graph", "ppo", "--output", "ppo.png") == "ppo.png\n"
    with Image.open(tmp_path / "ppo.png") as picture:
        assert picture.width > 1000
        assert len(picture.convert("L").getcolors() or ()) > 10
    said("graph", "--run", str(run), "--output", "run.svg")
    drawn = (tmp_path / "run.svg").read_text()
    assert "1 s a step in 1 call</text>" in drawn
    assert "var(--" not in drawn  # it stands alone
    page = write_report(str(run), read_record(str(run), run), tmp_path / "report.html")
    assert "graph" in Page(page).figures
    assert "1 s a step in 1 call</text>" in page.read_text()


@pytest.mark.slow
def test_what_cannot_be_drawn_is_said(refused: Callable[..., str], run: Path) -> None:
    assert refused("graph", "gropo").startswith("unknown algorithm gropo; did you mean grpo?")
    assert "my.py" in refused("graph", "my.py:Mine")
    assert refused("graph", "--kl", "1", "--run", str(run)).startswith("--kl 1: a run has one already")
    assert refused("graph", "--kl", "-1").startswith("--algorithm.kl.coefficient: ")
    assert refused("graph", "--output", "/proc/g.svg").startswith("--output /proc/g.svg: cannot be written")
    assert refused("graph", "ppo", "--output", "ppo.pdf") == "--output ppo.pdf: a picture is FILE.png or FILE.svg"
    assert refused("graph", "ppo", "--run", str(run)).startswith("ALGORITHM ppo: a run has one already")
    assert "is not a run" in refused("graph", "--run", str(run.parent / "none"))
    (run / "timeline.jsonl").unlink()
    assert refused("graph", "--run", str(run)).endswith("nothing is known of its calls; name a run that has trained")
    assert refused("plan", "--run", str(run)).endswith("nothing is known of its calls; name a run that has trained")


def test_a_plan_says_what_holds_a_step_up_and_what_to_set(said: Said, run: Path) -> None:
    text = said("plan", "--run", str(run))
    assert "4 s a step (measured); slow is the bottleneck" in text
    assert "set        --placement.generate worker:fast" in text
    assert "places     generate: fast\n           verify: judge\n           train: trainer\n" in text
    assert "leases     4 a step, of up to " in text
    assert "8 in flight (staleness 1)" in text
    assert "unknown    generate on judge, trainer" in text
    found = json.loads(said("plan", "--run", str(run), "--json"))
    assert found["bottleneck"] == "slow"
    assert found["places"]["generate"] == ["fast"]
    assert found["planned_seconds"] < found["step_seconds"] / 1.3


def test_other_programs_are_named_where_calls_wait_for_their_cores(said: Said, tmp_path: Path) -> None:
    """A call computes in a tenth of its time, and waits for a core in the rest."""
    machines = dict.fromkeys(("fast", "slow", "judge", "trainer"), ("m", 2))
    run = keep_run(tmp_path / "run", generate={"fast": 1.0, "slow": 1.0}, cold=0.0, machines=machines)
    spans = [json.loads(line) for line in (run / "timeline.jsonl").read_text().splitlines()]
    for one in spans[1:]:
        took = one["end"] - one["start"] - one.get("loading", 0.0)
        one |= {"computing": took / 10, "delayed": took * 0.9}
    (run / "timeline.jsonl").write_text("".join(json.dumps(one) + "\n" for one in spans))
    found = json.loads(said("plan", "--run", str(run), "--json"))
    assert max(found["busy"].values()) < 0.4
    assert "other programs wanted" in found["load"][0]
    assert found["bottleneck"] == "other programs"
    text = said("plan", "--run", str(run))
    assert re.search(
        r"a step \(measured\); other programs are the bottleneck: without them it would be \d\d% shorter\n", text
    )


def test_a_plan_of_leases_that_are_cut_proposes_no_size(said: Said, run: Path) -> None:
    spans = [json.loads(line) for line in (run / "timeline.jsonl").read_text().splitlines()]
    written = [{**one, "tokens": 9} if one.get("call") == "generate" else one for one in spans]
    (run / "timeline.jsonl").write_text("".join(json.dumps(one) + "\n" for one in written))
    text = said("plan", "--run", str(run))
    assert "leases     4 a step, as large as suits each worker; at most 8 in flight (staleness 1)" in text
    assert "--batch.lease" not in text
    assert json.loads(said("plan", "--run", str(run), "--json"))["lease"] is None


def test_what_is_published_in_float32_is_planned_with_sixteen_bytes_a_parameter(
    said: Said, refused: Callable[..., str], tmp_path: Path
) -> None:
    for room, name in ((0.0161, "enough"), (0.0159, "little")):
        run = keep_run(tmp_path / name, parameters=(1_000_000, 1_000_000), memory_gb={"trainer": room})
        keep_version(run, "float32", 4_000_000)
    assert "train: trainer" in said("plan", "--run", str(tmp_path / "enough"))
    assert "actor in training (16 MB) fits on no worker" in refused("plan", "--run", str(tmp_path / "little"))


@pytest.mark.slow
def test_a_plan_is_applied_to_the_run_or_to_a_file(said: Said, run: Path, tmp_path: Path) -> None:
    assert f"written    {run}/config.yaml" in said("plan", "--run", str(run), "--apply")
    assert saved_config(str(run)).placement.generate == ("worker:fast",)
    (tmp_path / "my.yaml").write_text("steps: 7\nplacement:\n  verify: [CPU]\n")
    said("plan", "--run", str(run), "--apply", "--config", "my.yaml")
    assert yaml.safe_load((tmp_path / "my.yaml").read_text()) == {
        "steps": 7,
        "placement": {"verify": ["CPU"], "generate": ["worker:fast"]},
    }


def test_probes_that_are_stopped_leave_those_that_were_made(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = iter(["runs/probe-1-one", KeyboardInterrupt()])

    def make(*_: object) -> str:
        if isinstance(run := next(runs), BaseException):
            raise run
        return run

    everything = frozenset({"GENERATOR", "TRAINER", "VERIFIER", "CPU"})
    monkeypatch.setattr(probe, "tags_of_workers", lambda _: {"one": everything, "two": everything})
    monkeypatch.setattr(probe, "made", make)
    with pytest.raises(KeyboardInterrupt):
        plan._probe(TrainConfig())
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("rlvf: probe 1 of 2")
    assert lines[1].endswith("steps; the last one took 0 s")
    assert lines[2] == "rlvf: the probes stay, for other questions: rlvf plan --run runs/probe-1-one"


@pytest.mark.slow
def test_a_plan_that_was_not_asked_for_well_is_refused(refused: Callable[..., str], run: Path) -> None:
    assert refused("plan").startswith("name a run that has trained (--run newest), or measure with --probe")
    assert refused("plan", "--probe", "--run", str(run)).endswith("one of both")
    assert refused("plan", "--run", str(run), "--steps", "3").startswith("--steps: a run has its own settings")
    assert refused("plan", "--probe", "--apply").startswith("--apply: name the file to write with --config")
    assert refused("plan", "--probe", "--most_stale", "0").startswith("--most_stale 0: give")
    assert refused("plan", "--run", str(run), "--most_stale", "0").endswith("give at least the staleness of now, 1")
    before = (run / "config.yaml").read_bytes()
    lock = acquire(str(run), print)
    said = refused("plan", "--run", str(run), "--apply")
    lock.release()
    assert said.startswith(f"--apply: {run} is in use by ")
    assert said.endswith("or write a file with --config FILE.yaml")
    assert (run / "config.yaml").read_bytes() == before


@pytest.mark.slow
def test_a_run_that_was_killed_is_changed(said: Said, run: Path) -> None:
    (run / "about.json").write_text('{"status": "running"}')  # its last word
    held = f"import os; from infra.storage.lock import acquire; acquire({str(run)!r}, print); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", held], check=False).returncode == -9
    assert f"written    {run}/config.yaml" in said("plan", "--run", str(run), "--apply")
    assert saved_config(str(run)).placement.generate == ("worker:fast",)
    lock = acquire(str(run), print)  # which is free again
    lock.release()


def test_a_file_that_there_is_no_room_for_stays_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("steps: 7\n")
    file.chmod(0o640)
    (tmp_path / "link.yaml").symlink_to(file)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4, most[1]))
        with pytest.raises(OSError, match=r"File too large"):
            apply_to_file(file, {"staleness": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert file.read_text() == "steps: 7\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.yaml", "my.yaml"]
    apply_to_file(tmp_path / "link.yaml", {"staleness": 2})
    assert yaml.safe_load(file.read_text()) == {"steps": 7, "staleness": 2}
    assert file.stat().st_mode & 0o777 == 0o640


def test_names_are_no_markup_of_mermaid_s() -> None:
    odd = '%%{init: {"theme": "dark"}}%%'
    lines = (f"on {odd}", '<b>x<img src="y">', "#lt;i#gt; `z`", "<b>\n%%%{wrap}%%")
    drawn = Drawing(f"{odd}: x\ngraph TD", (Node("<i>verify", "", lines, 0),), ())
    title, kind, label = mermaid(drawn).splitlines()
    assert title == '%% %{init: {"theme": "dark"}}%: x graph TD'
    assert kind == "flowchart LR"
    shown = label.partition('["')[2].removesuffix('"]').removeprefix("<b>#lt;i#gt;verify</b><br>").split("<br>")
    assert shown == [
        "on %{init: {#quot;theme#quot;: #quot;dark#quot;}}%",
        "#lt;b#gt;x#lt;img src=#quot;y#quot;#gt;",
        "#35;lt;i#35;gt; #96;z#96;",
        "#lt;b#gt; %{wrap}%",
    ]
