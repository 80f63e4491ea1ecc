"""Homes in which commands are given."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from flows.benches.processes import MARK, kill_marked, marked, started
from infra.services.ports import PORTS

ANY_PORT = [word for name in PORTS for word in (f"--port-{name}", "0")]
SERVICES = {"worker": "services/worker", "scheduler": "services/scheduler", "mlflow": "services/mlflow"}


@dataclass(frozen=True)
class MarkedHome:
    """A home where commands are given, all of them marked."""

    home: Path
    before: tuple[str, ...] = ()  # what each command is run by
    env: Mapping[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    @contextmanager
    def started(self, *words: str, log: Path | None = None, **env: str) -> Iterator[subprocess.Popen[str]]:
        """The command `rlvf`; what it says is in its pipes, or in `log`, where nobody reads these."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PREFECT_", "RLVF_", "MLFLOW_", "AWS_"))
        }
        with ExitStack() as stack:
            out: Any = subprocess.PIPE if log is None else stack.enter_context(log.open("a"))
            process = stack.enter_context(
                started(
                    *(*self.before, sys.executable, "-c", "from flows.cli import main; main()", *words),
                    cwd=self.home,
                    env={**inherited, "RLVF_HOME": str(self.home), MARK: self.mark, **self.env, **env},
                    stdout=out,
                    stderr=out,
                )
            )
            yield process

    def rlvf(self, *words: str, seconds: float = 120, **env: str) -> str:
        """Run the command to its end, and give its stdout. Raises RuntimeError where that is a bad one."""
        with self.started(*words, log=None, **env) as process:
            out, err = process.communicate(timeout=seconds)
            if process.returncode != 0:
                raise RuntimeError(f"rlvf {words[0]} ended with {process.returncode}: {err}")
            return out

    def shell(self) -> "MarkedHome":
        """The same in a shell that uses the services of its `rlvf up`."""
        lines = shlex.split(self.rlvf("status", "--shell"))
        settings = dict(line.split("=", 1) for line in lines if line != "export")
        return replace(self, env={**self.env, **settings})

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


@dataclass
class FreshHome:
    """One that is removed when its context ends, unless something has `failed`."""

    folder: Path
    failed: bool = False


@contextmanager
def fresh_home(prefix: str) -> Iterator[FreshHome]:
    """A new home, which is kept, and named on stderr, where what is done in it fails or raises."""
    home = FreshHome(Path(tempfile.mkdtemp(prefix=prefix)))
    try:
        yield home
    except (Exception, SystemExit):
        home.failed = True
        raise
    finally:
        if home.failed:
            print(f"its home is kept, with all logs: {home.folder}", file=sys.stderr, flush=True)
        else:
            shutil.rmtree(home.folder)


@contextmanager
def marked_home(home: Path, before: tuple[str, ...] = (), **env: str) -> Iterator[MarkedHome]:
    where = MarkedHome(home, before, env)
    try:
        yield where
    finally:
        kill_marked(where.mark)
