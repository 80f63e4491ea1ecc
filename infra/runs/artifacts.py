"""The files of a run in MLflow: given to MLflow, or put where the home's server of it looks for them."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from infra import disk
from infra.services.own_artifacts import OWN, artifact_place
from infra.storage import place

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

T = TypeVar("T")


class Artifacts:
    """The files of one run. Its methods raise MlflowException, and whatever the client of their storage raises."""

    def __init__(self, client: "MlflowClient", run: "Run", is_served: bool, home: Path | None) -> None:
        """`home` is that of the database in which the run is; None for another database."""
        self._client = client
        self._run_id = str(run.info.run_id)
        self._uri = str(run.info.artifact_uri)
        # a run of an experiment that a server made: without that server, MLflow's client refuses to write its files
        self._is_put = not is_served and self._uri.startswith(OWN[:-1])
        self._home = home

    def store(self, file: Path, folder: str = "") -> None:
        """Store a file in `folder`; one of the same name is replaced."""
        if self._is_put:
            self._put(file.read_bytes(), f"{folder}/{file.name}" if folder else file.name)
        else:
            with tempfile.TemporaryDirectory(dir=disk.own_folder()) as own:
                # MLflow's folder gets a file's rights, too: others may write where a run lies
                disk.copy_files(file.parent, Path(own), [file.name])
                self._client.log_artifact(self._run_id, str(Path(own, file.name)), folder or None)

    def store_text(self, text: str, path: str) -> None:
        """Store a text at `path`."""
        if self._is_put:
            self._put(text.encode(), path)
        else:
            self._client.log_text(self._run_id, text, path)

    def fetch(self, path: str, folder: Path) -> Path:
        """Copy the file at `path` into `folder`."""
        if not self._is_put:
            return Path(self._client.download_artifacts(self._run_id, path, str(folder)))
        content = self._at(path, place.read)
        if content is None:
            raise FileNotFoundError(f"{path}: no such file of run {self._run_id}")
        copy = folder / Path(path).name
        copy.write_bytes(content)
        return copy

    def _put(self, content: bytes, path: str) -> None:
        self._at(path, lambda uri: place.write_bytes(uri, content))

    def _at(self, path: str, do: Callable[[str], T]) -> T:
        if self._home is None:
            raise OSError("files of this experiment are kept by the server that made it: name that in tracking.uri")
        return do(place.join(artifact_place(self._home, self._uri), path))
