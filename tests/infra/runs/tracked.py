"""Runs tracked by an MLflow database, and what it holds of them."""

import json
from pathlib import Path

from infra.runs.mlflow_run import Owner
from infra.runs.tracking import Tracker, TrackingConfig

QUIET = TrackingConfig(system_metrics=False)
OWNER = Owner("of the first")


def start(home, config=QUIET, run_id=None, params=None, local=None, guest=False, owner=OWNER, **more):
    return Tracker(
        config,
        home=home,
        experiment="sums",
        run_name="first",
        run_id=run_id,
        params=params or {},
        owner=owner,
        local=local,
        guest=guest,
        **more,
    )


def table(client, run_id, path, folder):
    return json.loads(Path(client.download_artifacts(run_id, path, str(folder))).read_text())


def points(client, run_id, name):
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]
