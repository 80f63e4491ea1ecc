"""Secrets that were planted in what a run is given are found in nothing that it leaves."""

import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.options.reading import OptionError, read_config
from flows.start.resume import resume_run
from infra.security import secrets
from infra.security.secrets import MaskedError

PLANTED = "pL4nt3d"


@contextmanager
def serving(file: Path, asked: list[str]) -> Iterator[str]:
    """The address, with secrets in it, of a file."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            asked.append(f"{self.path} {self.headers.get('Authorization', '')}")
            self.send_response(200)
            self.send_header("Content-Length", str(file.stat().st_size))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(file.read_bytes())

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://me:{PLANTED}-password@127.0.0.1:{server.server_port}/sums.csv?token={PLANTED}-token"
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_nothing_that_a_run_leaves_holds_a_secret(
    lab: Any, mlflow_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(lab.home, tmp_path / "home", ignore=lambda _, names: set(names) - {"mlflow.db"}, dirs_exist_ok=True)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{PLANTED}-aws")
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"{PLANTED}-session")
    asked: list[str] = []
    with serving(lab.problems, asked) as problems:
        tracking = mlflow_server.uri.replace("://", f"://me:{PLANTED}-mlflow@")
        options = lab.options(
            run="planted", steps="2", problems=problems, tracking__uri=tracking, tracking__report="true"
        )
        with lab.command("train", options=options) as command:
            code, out, err = command.finish()
    assert code == 0, err
    assert any(f"{PLANTED}-token" in line and "Basic" in line for line in asked)  # the address was used as it was given
    assert PLANTED not in out + err
    assert "***@" in (lab.run_folder("planted") / "config.yaml").read_text()
    assert (lab.run_folder("planted") / "report.html").exists()
    for folder in (lab.home, tmp_path):  # Prefect's database, MLflow's, its artifacts, logs, the run
        holding = [file for file in folder.rglob("*") if file.is_file() and PLANTED.encode() in file.read_bytes()]
        assert holding == []

    # a secret that was not saved is given again, or said to be missing
    run, runs = lab.run_folder("planted"), str(lab.home / "runs")
    again = {"problems": problems, "tracking.uri": tracking, "steps": "3"}
    assert resume_run("planted", runs, None, again).config.tracking.uri == tracking
    for missing in ("problems", "tracking.uri"):
        given = {name: value for name, value in again.items() if name != missing}
        monkeypatch.setattr(secrets, "_known", {})  # as in another process
        with pytest.raises(
            MaskedError, match=rf"^{missing}.*: 'http://\*\*\*@.* was saved without its secret; give it"
        ):
            resume_run("planted", runs, None, given)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking)
    assert resume_run("planted", runs, None, {"problems": problems}).config.tracking.uri == tracking
    with pytest.raises(OptionError, match="cannot be resumed with problems"):
        resume_run("planted", runs, None, {**again, "problems": str(lab.problems)})
    assert yaml.safe_load((run / "config.yaml").read_text())["tracking"]["uri"].startswith("http://***@")


def test_a_path_that_cannot_be_read_is_named_without_its_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.config import TrainConfig
    from flows.start.runs import with_secrets, without_secrets
    from rl.config import ProblemsConfig, VerifierConfig
    from tasks.sets.problem_set import open_problems

    address = f"http://me:{PLANTED}@127.0.0.1:1/sums.csv?token={PLANTED}"
    with pytest.raises(ValueError, match=r"http://\*\*\*@127.0.0.1:1/sums.csv\?token=\*\*\*") as refused:
        open_problems((ProblemsConfig(path=address),), VerifierConfig(), 4, 0)
    assert PLANTED not in str(refused.value)
    config = read_config(TrainConfig, file=None, overrides={"problems": address})
    shown = without_secrets(config)
    assert PLANTED not in str(shown)
    assert with_secrets(shown) == config
    monkeypatch.setattr(secrets, "_known", {})
    with pytest.raises(MaskedError):
        with_secrets(shown)
