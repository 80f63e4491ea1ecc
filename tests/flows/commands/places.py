"""Homes in which commands are given."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from infra.services.ports import PORTS
from tests.processes import MARK, kill_marked, marked, started

ANY_PORT = [word for name in PORTS for word in (f"--port-{name}", "0")]
SERVICES = {"worker": "services/worker", "scheduler": "services/scheduler", "mlflow": "services/mlflow"}


@dataclass(frozen=True)
class Place:
    """A home where commands are given, all of them marked."""

    home: Path
    before: tuple[str, ...] = ()  # what each command is run by
    env: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @contextmanager
    def started(self, *words: str, **env: str) -> Iterator[subprocess.Popen[str]]:
        """The command `rlvf`."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PREFECT_", "RLVF_", "MLFLOW_", "AWS_"))
        }
        with started(
            *(*self.before, sys.executable, "-c", "from flows.cli import main; main()", *words),
            cwd=self.home,
            env={**inherited, "RLVF_HOME": str(self.home), MARK: self.mark, **self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            yield process

    def rlvf(self, *words: str, **env: str) -> str:
        """Run the command to its end, which is a good one, and give its stdout."""
        with self.started(*words, **env) as process:
            out, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
            return out

    def status(self, *words: str) -> Any:
        return json.loads(self.rlvf("status", "--json", *words))

    def alive(self) -> list[psutil.Process]:
        """All that runs because of these commands."""
        return marked(self.mark)

    def up(self) -> Any:
        return json.loads((self.home / "up.json").read_text())

    def supervisor(self, name: str) -> int:
        return int(json.loads((self.home / SERVICES.get(name, name) / "server.json").read_text())["pid"])

    def service(self, name: str) -> psutil.Process:
        (child,) = psutil.Process(self.supervisor(name)).children()
        return child


@contextmanager
def place(home: Path, before: tuple[str, ...] = (), **env: str) -> Iterator[Place]:
    where = Place(home, before, env)
    try:
        yield where
    finally:
        kill_marked(where.mark)
