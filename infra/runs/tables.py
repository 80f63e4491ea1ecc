"""Tables of sample completions in MLflow: a file for each step, which MLflow's page shows as a table."""

import json
import re
import tempfile
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.disk import own_folder
from infra.runs.artifacts import Artifacts

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

SHOWN = 100  # the tag that makes MLflow show a file as a table holds 8000 characters
TAG = "mlflow.loggedArtifacts"


def table_path(step: int) -> str:
    """Where the table of a step is among the artifacts of its run."""
    return f"samples/{step:06d}.json"


class Tables:
    """Those of one run. What it does raises what `Artifacts` does."""

    def __init__(self, client: "MlflowClient", run: "Run", artifacts: Artifacts) -> None:
        self._client, self._artifacts = client, artifacts
        self._run_id = str(run.info.run_id)
        self._shown: list[dict[str, str]] = json.loads(run.data.tags.get(TAG, "[]"))

    def show(self, path: str, table: Mapping[str, Any]) -> None:
        """Store a table that the page shows as one."""
        self._artifacts.store_text(json.dumps(table, ensure_ascii=False), path)
        entry = {"path": path, "type": "table"}
        shown = [*(each for each in self._shown if each != entry), entry]
        self._shown = sorted(shown, key=itemgetter("path"))[-SHOWN:]  # one that failed comes after newer ones
        self._client.set_tag(self._run_id, TAG, json.dumps(self._shown))

    def paths(self, step: int) -> list[str]:
        """Where the tables of steps up to `step` are."""
        found = [re.fullmatch(r"samples/(\d+)\.json", each["path"]) for each in self._shown]
        return [each[0] for each in found if each and int(each[1]) <= step]

    def copy(self, path: str, source: "Tables") -> None:
        """Show what another run has at `path`."""
        with tempfile.TemporaryDirectory(dir=own_folder()) as folder:
            table = json.loads(source._artifacts.fetch(path, Path(folder)).read_text())
        self.show(path, table)
