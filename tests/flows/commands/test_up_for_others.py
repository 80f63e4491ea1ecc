"""`rlvf up --host`: other machines meet certificates and passwords."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from flows.benches.place import MarkedHome, marked_home
from infra.security.identity import certs_folder
from infra.services.passwords import kept_password
from tests.other_users import intrude, visit
from tests.processes import of_each, until

ALONE = ("unshare", "--net", "sh", "-c", 'ip link set lo up && ip addr add 10.9.0.1/32 dev lo && exec "$@"', "sh")


@contextmanager
def postgresql() -> Iterator[dict[str, str]]:
    """What makes Prefect and MLflow use a PostgreSQL of the distribution's, reached by a socket of the file system;
    nothing where it is not installed."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not programs:
        yield {}
        return
    folder = Path(tempfile.mkdtemp(prefix="rlvf-pg-"))  # the path of a socket is short
    shutil.chown(folder, "nobody")
    (folder / "password").write_text("planted-database")
    shutil.chown(folder / "password", "nobody")

    def run(name: str, *words: str, **env: str) -> None:
        command = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", str(programs[-1] / name), *words]
        done = subprocess.run(
            command, cwd=folder, env={"PATH": os.environ["PATH"], **env}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    at = {"PGHOST": str(folder), "PGUSER": "rlvf", "PGPASSWORD": "planted-database"}
    run(
        "initdb",
        "-D",
        "data",
        "-U",
        "rlvf",
        "-A",
        "scram-sha-256",
        "--pwfile",
        "password",
        "-E",
        "UTF8",
        "--locale=C",
        "--no-sync",
    )
    options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
    run("pg_ctl", "start", "-w", "-D", "data", "-l", "log", "-o", options)
    try:
        for name in ("prefect", "mlflow"):
            run("createdb", name, **at)
        tail = f"host={folder}"
        yield {
            "PREFECT_API_DATABASE_CONNECTION_URL": f"postgresql+asyncpg://rlvf:planted-database@/prefect?{tail}",
            "MLFLOW_BACKEND_STORE_URI": f"postgresql+psycopg://rlvf:planted-database@/mlflow?{tail}",
        }
    finally:
        run("pg_ctl", "stop", "-w", "-m", "immediate", "-D", "data")
        shutil.rmtree(folder)


@pytest.mark.slow
def test_other_machines_meet_certificates_and_passwords(lab: Any, tmp_path: Path) -> None:
    if os.geteuid() or not shutil.which("unshare") or subprocess.run([*ALONE, "true"], check=False).returncode:
        pytest.skip("needs root and network namespaces, for an address that other machines could reach")
    home = lab.fresh_home(tmp_path / "home")
    before = {path: path.stat().st_size for path in (home / "mlflow.db", home / "prefect" / "prefect.db")}
    with postgresql() as databases, marked_home(home, ALONE, **databases) as first, ExitStack() as stack:
        first.rlvf("up", "--detach", "--host", "10.9.0.1")
        inside = ("nsenter", f"--net=/proc/{first.up()['pid']}/ns/net")
        there = MarkedHome(home, inside, mark=first.mark)
        known = first.up()
        assert known["scheduler"].startswith("tls://10.9.0.1:")
        assert all(there.status()["answers"].values())

        authority = certs_folder(home) / "authority.pem"

        def code(url: str, user: str = "", trusting: Path | None = authority) -> str:
            words = [*inside, "curl", "-s", "--noproxy", "*", "-o", str(tmp_path / "out"), "-w", "%{http_code}"]
            words += ["--cacert", str(trusting)] if trusting else []
            words += ["-u", user] if user else []
            refused = url.startswith("http:")
            return subprocess.run([*words, url], capture_output=True, text=True, check=not refused).stdout

        passwords = {name: kept_password(home, name) for name in ("prefect", "mlflow", "dashboard")}
        experiments = f"{known['mlflow']}/api/2.0/mlflow/experiments/search?max_results=1"
        for name, page in {"prefect": f"{known['prefect']}/version", "mlflow": experiments}.items():
            assert page.startswith("https://10.9.0.1:")
            assert code(page) == "401"
            assert code(page, f"rlvf:{passwords[name]}") == "200"
            assert code(page, f"rlvf:{passwords['dashboard']}") == "401"  # each opens one thing
            with pytest.raises(subprocess.CalledProcessError):
                code(page, trusting=None)  # curl knows no such authority
            assert code(page.replace("https:", "http:")) == "000"  # nothing is told in the clear
        service = stack.enter_context(there.started("verifier", "serve", "--json", "--host", "10.9.0.1", "--port", "0"))
        assert service.stdout is not None
        judge = urlsplit(json.loads(service.stdout.readline())["url"]).port
        pages = {urlsplit(known[name]).port for name in ("prefect", "mlflow")}
        at = [urlsplit(worker["address"]) for worker in there.status()["workers"]]
        assert {address.hostname for address in at} == {"10.9.0.1"}
        assert len(at) == 3  # a generator, a verifier and a trainer
        ports = pages | {judge, urlsplit(known["scheduler"]).port, *(address.port for address in at)}
        assert intrude(ports, tmp_path, "10.9.0.1", inside) == set()
        assert visit(ports, "10.9.0.1", inside) == {port: [401] if port in pages else [] for port in ports}
        service.send_signal(signal.SIGINT)
        settings = there.rlvf("status", "--shell")

        def said(*words: str) -> str:
            command = [*inside, "sh", "-c", f'{settings}\n exec "$0" "$@"', sys.executable, *words]
            return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

        assert "rlvf/train" in said("-m", "prefect", "deployment", "ls")
        experiments = "from mlflow import MlflowClient; print(len(MlflowClient().search_experiments()))"
        assert int(said("-c", experiments)) >= 1
        assert (home / "secrets.json").stat().st_mode & 0o777 == 0o600
        words = chain(*of_each(first.alive(), psutil.Process.cmdline))
        shown = " ".join(words) + there.rlvf("status", "--json")
        for secret in map(str, passwords.values()):
            assert secret not in shown
            assert holding(home, secret) == [home / "secrets.json"]
        assert "planted-database" not in shown
        assert holding(home, "planted-database") == []
        there.rlvf("down")
        until(lambda: not first.alive(), 90)
        if not databases:
            pytest.skip("PostgreSQL is not installed (apt-get install postgresql): all of this was true on SQLite")
        assert {path: path.stat().st_size for path in before} == before  # nothing went there


def holding(folder: Path, secret: str) -> list[Path]:
    """The files in which it stands."""
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
