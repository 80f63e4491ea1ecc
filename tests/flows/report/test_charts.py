"""What a report draws, and how it looks on whatever it is read."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from flows.report.charts import MOST_LINES, learning
from flows.report.html import write_report
from infra.runs.record import Record, read_record
from tests.flows.report.read_back import Page

BEGUN = 1_790_000_000_000  # milliseconds
STEPS = 60


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run whose reward is never 1, made of its files alone."""
    run = tmp_path_factory.mktemp("graded")
    lines = []
    for step in range(STEPS + 1):
        figures = {"eval/reward": 0.1 + step / 100, "eval/pass_at_1": 0.0} if step in (0, STEPS) else {}
        if step:
            figures |= {"reward/mean": 0.1 + step / 100, "reward/pass_rate": 0.0, "perf/rollouts_seconds": 0.4}
            figures |= {"reward/<b>/mean": 0.2, "reward/&/mean": 0.3, "policy/entropy": 1 / step}
        lines.append(json.dumps({"step": step, "time": BEGUN, **figures}) + "\n")
    (run / "metrics.jsonl").write_text("".join(lines))
    return write_report(str(run), read_record(str(run), run), run / "report.html")


@pytest.mark.slow
def test_a_reward_that_never_is_1_is_seen_to_rise(graded: Path) -> None:
    page = Page(graded)
    assert page.figures == ["reward", "pass-rate", "sets", "entropy", "stages"]
    assert "0.100 → 0.700" in page.text
    assert "mean reward" in page.text  # what the first chart plots, by its axis
    assert "<b>" in page.text  # a set's name is text in a drawing, too


@pytest.mark.slow
def test_a_long_run_says_of_how_many_steps_each_point_is_the_mean(tmp_path: Path, graded: Path) -> None:
    figures = {"reward/mean": 0.5, "policy/entropy": 0.1, "perf/rollouts_seconds": 0.4}
    figures |= {"staleness/mean": 0.5, "staleness/max": 1, "sync/bytes": 9}
    lines = [json.dumps({"step": step, "time": BEGUN, **figures}) + "\n" for step in range(1, 321)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    text = write_report(str(tmp_path), read_record(str(tmp_path), tmp_path), tmp_path / "report.html").read_text()
    said = re.findall(r"<figcaption><b>([^<]*)</b>[^<]*Each point is the mean of 3 steps\.</figcaption>", text)
    assert said == ["Entropy", "Where the time goes", "Staleness", "Bytes"]
    assert "Each point" not in graded.read_text()


@pytest.mark.slow
def test_groups_of_a_run_that_an_older_version_began_are_drawn_too(tmp_path: Path) -> None:
    lines = [
        json.dumps({"step": step, "time": BEGUN, "reward/mean": 0.5, name: of, "groups/used": 2}) + "\n"
        for step, name, of in ((1, "groups/drawn", 5), (2, "groups/drawn", 6), (3, "groups/generated", 7))
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    record = read_record(str(tmp_path), tmp_path)
    assert record.curve("groups/generated") == {1: 5, 2: 6, 3: 7}
    page = write_report(str(tmp_path), record, tmp_path / "report.html")
    assert "groups" in Page(page).figures
    assert "generated</text>" in page.read_text()


@pytest.mark.slow
def test_what_a_critic_and_a_reference_say_is_drawn_and_no_kl_is_mistaken_for_the_other(tmp_path: Path) -> None:
    figures = {"reward/mean": 0.5, "policy/mismatch_kl": 1e-4, "loss/kl_reference": 0.2, "loss/kl_coefficient": 0.1}
    figures |= {"critic/explained_variance": -0.5, "critic/loss": 0.2, "critic/value_mean": 0.4}

    def report(adapted: float) -> Record:
        lines = [json.dumps({"step": step, "time": BEGUN, **figures}) + "\n" for step in (1, 2)]
        lines.append(json.dumps({"step": 3, "time": BEGUN, **figures, "loss/kl_coefficient": adapted}) + "\n")
        (tmp_path / "metrics.jsonl").write_text("".join(lines))
        return read_record(str(tmp_path), tmp_path)

    kls, critic = ["kl-behaviour", "kl-reference"], ["explained-variance", "critic-loss", "value"]
    assert [chart.name for chart in learning("", report(0.1))] == ["reward", *kls, *critic]
    page = Page(write_report(str(tmp_path), report(0.2), tmp_path / "report.html"))
    assert page.figures == ["reward", *kls, "kl-coefficient", *critic]
    for title in ("KL, behaviour policy to trained policy", "KL to the reference policy", "Critic: mean value"):
        assert title in page.text


def test_a_metric_of_updates_that_no_chart_names_is_drawn_in_the_last_one(tmp_path: Path) -> None:
    figures = {"reward/mean": 0.5, "policy/entropy": 0.1, "correction/kept": 1.0, "loss/policy": 0.3}
    figures |= {"policy/advantage_size": 0.25, "correction/ess": 0.9}
    lines = [json.dumps({"step": step, "time": BEGUN, **figures}) + "\n" for step in (1, 2)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    charts = list(learning("", read_record(str(tmp_path), tmp_path)))
    assert [chart.name for chart in charts] == ["reward", "entropy", "shares", "more"]
    assert charts[-1].metrics == ("correction/ess", "policy/advantage_size")
    charts[-1].draw(tmp_path / "more.svg")
    assert "advantage_size</text>" in (tmp_path / "more.svg").read_text()


def test_a_report_follows_the_reader_s_colours_and_width(graded: Path) -> None:
    text = graded.read_text()
    assert "@media (prefers-color-scheme: dark)" in text
    drawings = re.findall(r"<svg.*?</svg>", text, flags=re.DOTALL)
    assert len(drawings) == 5
    for drawing in drawings:
        assert "var(--ink)" in drawing
        assert "#1f2933" not in drawing
        assert "#ffffff" not in drawing  # around a point: the paper's colour
        (width,) = re.findall(r'viewBox="0 0 ([\d.]+) ', drawing)
        assert float(width) < 345  # points: as wide as a telephone's page, so that its text is as large
    assert "min-width: 34rem" not in text


@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs a browser: apt install chromium")
def test_nothing_is_cut_on_a_telephone(graded: Path, tmp_path: Path) -> None:
    probe = """<script>addEventListener("load", () => {
      const right = e => e.getBoundingClientRect().right, page = document.documentElement;
      const cut = [...document.querySelectorAll("body *")].filter(e => right(e) > page.clientWidth + 1)
        .concat([...document.querySelectorAll("svg text")].filter(e => right(e) > right(e.closest("svg")) + 1));
      document.title = innerWidth + " " + (page.scrollWidth <= innerWidth) + " " + cut.map(e => e.textContent).join();
    })</script>"""
    inner = tmp_path / "inner.html"
    text = re.sub(r"<meta http-equiv=.Content-Security-Policy[^>]*>", "", graded.read_text())
    inner.write_text(text.replace("</body>", f"{probe}</body>"))
    outer = tmp_path / "outer.html"
    # a window of the browser is at least 500 wide; a frame is as wide as it is told to be
    outer.write_text(
        f'<iframe style="width:390px;height:900px;border:0" src="{inner.as_uri()}"></iframe><script>'
        'addEventListener("load", () => setTimeout(() => document.body.dataset.found = '
        "document.querySelector('iframe').contentDocument.title, 0))</script>"
    )
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    words = ["chromium", *flags, f"--user-data-dir={tmp_path}/profile", "--virtual-time-budget=5000", outer.as_uri()]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True).stdout
    (found,) = re.findall(r'data-found="([^"]*)"', shown)
    assert found.strip() == "390 true"


def test_turns_and_refused_calls_of_an_environment_are_drawn_and_told(tmp_path: Path) -> None:
    lines = [
        json.dumps(
            {
                "step": step,
                "time": BEGUN,
                "reward/mean": 0.5,
                "turns/mean": 7 - step,
                "tools/calls": 6.0,
                "tools/errors": step / 10,
                **({"eval/turns": 5.0} if step == 2 else {}),
            }
        )
        for step in (1, 2)
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    page = Page(write_report(str(tmp_path), read_record(str(tmp_path), tmp_path), tmp_path / "report.html"))
    assert {"turns", "refused"} <= set(page.figures)
    assert "6.00 → 5.00" in page.text
    assert "20% of the calls were refused in the last step" in page.text


def test_of_thousands_of_problem_sets_some_are_drawn(tmp_path: Path) -> None:
    lines = []
    for step in (1, 2):
        figures = {"reward/mean": 0.5} | {f"reward/s{at:04}/mean": 0.5 for at in range(3000)}
        lines.append(json.dumps({"step": step, "time": BEGUN, **figures}) + "\n")
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    text = write_report(str(tmp_path), read_record(str(tmp_path), tmp_path), tmp_path / "report.html").read_text()
    assert f"The first {MOST_LINES} of 3,000 are drawn." in text
    assert f">s{MOST_LINES - 1:04}</text>" in text
    assert f">s{MOST_LINES:04}</text>" not in text
