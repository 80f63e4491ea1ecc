"""What MLflow's page says of a run."""

import json
import re
import urllib.parse
from pathlib import Path

import mlflow.server

from infra.runs.description import chart_of
from tests.infra.runs.tracked import start


def test_the_description_of_a_run_opens_the_chart_of_its_reward(home, client):
    params = {"policy.model": "tiny", "problems.path": "[x](evil).csv", "algorithm.name": "grpo"}
    with start(home, params=params) as tracker:
        tracker.log(1, {"batch/x": 1.0, "reward/mean": 0.5, "eval/reward": 0.25})
    run = client.get_run(tracker.run_id)
    text = run.data.tags["mlflow.note.content"]
    assert text.startswith("Reinforcement learning of **tiny** on **_x__evil_.csv** by **grpo**.")
    (link,) = re.findall(r"\]\((.+?)\)", text)
    page, _, query = link.partition("?")
    asked = {name: json.loads(value) for name, value in urllib.parse.parse_qsl(query) if name != "x_axis"}
    assert page == "#/metric"  # a page of MLflow's, wherever it is served
    assert (asked["runs"], asked["experiments"]) == ([tracker.run_id], [run.info.experiment_id])
    assert asked["metric"] == "reward/mean"
    assert asked["plot_metric_keys"] == ["reward/mean", "eval/reward"]
    assert set(asked["plot_metric_keys"]) < set(run.data.metrics)
    with start(home) as evaluation:
        pass
    assert "mlflow.note.content" not in client.get_run(evaluation.run_id).data.tags


def test_what_the_link_asks_for_is_what_the_pages_of_mlflow_read():
    """A later version of MLflow may have other pages."""
    pages = Path(mlflow.server.__file__).parent / "js" / "build" / "static" / "js"
    (main,) = (file.read_text() for file in pages.glob("main.*.js"))
    assert '"/metric/*"' in main
    for name in re.findall(r"[?&](\w+)=", chart_of("1", "2", ("reward/mean",))):
        assert re.search(rf"[?&]{name}=\$", main), name
