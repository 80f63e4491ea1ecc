"""`rlvf up`, `rlvf down` and `rlvf status`: real services, real signals."""

import http.cookiejar
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.cli import main
from flows.commands.deployments import Registration
from infra.cluster.reach import parse_address
from infra.security.identity import certs_folder, install_bundle, issue, make_authority, own_certificates
from infra.services.addresses import Addresses, Up, the_only_up, write_up
from infra.services.gate import basic
from infra.services.http import get_json
from infra.services.passwords import auth_of, kept_password
from infra.services.ports import PORTS
from infra.services.prefect_server import server_password
from infra.services.scheduler import Seen, announce, ask
from infra.services.served import mlflow_access
from tests.processes import MARK, kill_marked, marked, started, until
from tests.strangers import refused, status

PLANTED = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_SECRET_ACCESS_KEY": "planted-aws",
    "PREFECT_SERVER_API_AUTH_STRING": "someone:planted-prefect",
}
ANY_PORT = [word for name in PORTS for word in (f"--port-{name}", "0")]
DEPLOYMENTS = ("rlvf/train", "rlvf-sft/warm-up", "rlvf-eval/scheduled")
SERVICES = {"worker": "services/worker", "scheduler": "services/scheduler", "mlflow": "services/mlflow"}


def asked(scheduler: str, home: Path) -> Seen:
    return ask(parse_address(scheduler, home), home)


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


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """A local S3 API with the bucket `there`, which takes any credentials."""
    server = pytest.importorskip("moto.server", reason="needs moto[server]: install the extra 'dev'")
    running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    url = "http://{}:{}".format(*running.get_host_and_port())
    bucket(url).create_bucket(Bucket="there")
    yield url
    running.stop()


def bucket(endpoint: str) -> Any:
    import boto3

    keys = {"aws_access_key_id": "tester", "aws_secret_access_key": "any", "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=endpoint, **keys)


@pytest.fixture(scope="module")
def up(lab: Any, endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """`rlvf up --detach` on free ports, on S3, with secrets in its environment."""
    home = lab.fresh_home(tmp_path_factory.mktemp("up") / "home")
    with place(home, **PLANTED, PREFECT_API_AUTH_STRING=PLANTED["PREFECT_SERVER_API_AUTH_STRING"]) as where:
        kept = ("--storage", "s3://there/rlvf", "--storage-endpoint", endpoint)
        said = where.rlvf("up", "--no-with-worker", "--detach", *ANY_PORT, *kept)
        assert "stop it with: rlvf down" in said
        yield where


def test_status_tells_where_everything_is_and_that_it_answers(up: Place) -> None:
    status = up.status()
    assert status["answers"] == dict.fromkeys(("prefect", "mlflow", "scheduler", "storage"), True)
    assert status["storage"] == "s3://there/rlvf"
    assert status["workers"] == []
    assert {name: status[name] for name in ("prefect", "mlflow", "scheduler")} == {
        name: up.up()[name] for name in ("prefect", "mlflow", "scheduler")
    }


def test_whoever_knows_the_scheduler_learns_the_rest(up: Place, tmp_path: Path) -> None:
    assert up.up()["scheduler"].startswith("tls://127.0.0.1:")  # another user of this machine reaches it
    with Place(tmp_path).started("status", "--scheduler", up.up()["scheduler"]) as stranger:
        said, _ = stranger.communicate(timeout=60)
        assert up.up()["storage"] not in said
        assert "certificate" in said
    issue(up.home, "other").write(tmp_path / "other.bundle")
    install_bundle(tmp_path / "other.bundle", tmp_path)
    status = Place(tmp_path).status("--scheduler", up.up()["scheduler"])
    assert status["prefect"] == up.up()["prefect"]
    assert status["mlflow"] == up.up()["mlflow"]
    assert status["storage"] == "s3://there/rlvf"
    assert not (tmp_path / "secrets.json").exists()  # a guest has no password, and looking makes none


def test_the_artifacts_of_mlflow_lie_on_the_storage(
    up: Place, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    (tmp_path / "note.txt").write_text("kept")
    for name, value in mlflow_access(up.home, up.up()["mlflow"]).items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(up.up()["mlflow"])
    # the default experiment may be older than this storage: the home is a copy of one in which runs were made
    run = client.create_run(client.create_experiment("kept"))
    client.log_artifact(run.info.run_id, str(tmp_path / "note.txt"))
    stored = [each["Key"] for each in bucket(endpoint).list_objects_v2(Bucket="there")["Contents"]]
    assert [key for key in stored if key.startswith("rlvf/mlartifacts/") and key.endswith("/note.txt")]


def test_a_page_of_a_stranger_is_refused_on_every_port(up: Place) -> None:
    known = up.up()
    auths = {
        "prefect": PLANTED["PREFECT_SERVER_API_AUTH_STRING"],
        "mlflow": auth_of(up.home, "mlflow"),
        "dashboard": auth_of(up.home, "dashboard"),
    }
    pages = {
        "prefect": f"{known['prefect']}/deployments/filter",
        "mlflow": f"{known['mlflow']}/api/2.0/mlflow/experiments/search",
        "dashboard": known["dashboard"],
    }
    for name, page in pages.items():
        password = {"Authorization": f"Basic {basic(auths[name])}"}
        found = refused(page, password)
        assert found.pop("nothing") == 401, name
        assert set(found.values()) == {403}, (name, found)
    assert status(pages["prefect"], "POST", "{}", Authorization=f"Basic {basic(auths['prefect'])}") == 200
    assert status(pages["dashboard"], Authorization=f"Basic {basic(auths['dashboard'])}") == 200


def test_the_links_that_are_printed_open_the_pages(up: Place) -> None:
    printed = [line.split() for line in up.rlvf("status").splitlines() if "key=" in line]
    assert [name for name, _ in printed] == ["prefect", "mlflow", "dashboard"]
    for _, url in printed:
        at, _, query = url.partition("?")
        jar = http.cookiejar.CookieJar()
        browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor(jar))
        with browser.open(f"{at}?{query}") as answer:
            assert b"location.replace" in answer.read()
        with browser.open(at) as answer:
            assert answer.status == 200
        assert status(at, Accept="text/html") == 401  # another browser


def test_a_second_up_says_that_it_is_up_already(up: Place) -> None:
    before = sorted(process.pid for process in up.alive())
    said = up.rlvf("up")
    assert "it is up already" in said
    assert up.up()["mlflow"] in said
    assert sorted(process.pid for process in up.alive()) == before


def test_secrets_of_the_environment_are_written_nowhere(up: Place) -> None:
    secrets = ("planted-aws", "planted-prefect")
    shown = [" ".join(process.cmdline()) for process in up.alive()]
    shown += [
        up.rlvf("status"),
        up.rlvf("status", "--json"),
        json.dumps(asked(up.up()["scheduler"], up.home).services, default=vars),
    ]
    files = [path for path in up.home.rglob("*") if path.is_file()]
    for secret in secrets:
        assert not [text for text in shown if secret in text]
        assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_deployments_that_are_there_are_left_as_they_are(up: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_SERVER_API_AUTH_STRING", PLANTED["PREFECT_SERVER_API_AUTH_STRING"])
    monkeypatch.setattr("subprocess.Popen", None)  # nothing is started to register them
    registration = Registration(up.home)
    assert registration({}, up.up()["prefect"])
    kept = up.home / "services" / "deployments.json"
    kept.write_text(kept.read_text().replace(':"', ':"0').replace(': "', ': "0', 1))
    with pytest.raises(TypeError):  # another version of rlvf registers its own
        registration({}, up.up()["prefect"])


def can_listen(url: str) -> bool:
    """Whether another program can take the port of that server."""
    where = urllib.parse.urlsplit(url)
    try:
        socket.create_server((where.hostname, where.port)).close()
    except OSError:
        return False
    return True


def test_what_is_killed_comes_back_at_its_address_and_knows_what_it_knew(up: Place) -> None:
    before = up.up()
    names = ("mlflow", "scheduler", "worker", "prefect")
    killed = {name: up.service(name) for name in names}
    supervisor = up.supervisor("mlflow")
    taken, over = [], threading.Event()

    def take() -> None:
        """Their clients tell the passwords to whoever listens there."""
        while not over.wait(0.005):
            taken.extend(name for name in ("prefect", "mlflow") if can_listen(before[name]))

    taker = threading.Thread(target=take)
    taker.start()
    for process in killed.values():
        process.kill()
    os.kill(supervisor, signal.SIGKILL)  # a supervisor too, which leaves nobody to see its service

    def back() -> bool:
        try:
            return all(up.service(name).pid != killed[name].pid for name in names) and all(
                up.status()["answers"].values()
            )
        except (OSError, ValueError, psutil.NoSuchProcess):
            return False

    try:
        until(back)
    finally:
        over.set()
        taker.join()
    assert not taken
    assert up.up() == before
    assert asked(before["scheduler"], up.home).services.mlflow == before["mlflow"]  # told again
    for name in DEPLOYMENTS:
        auth = PLANTED["PREFECT_SERVER_API_AUTH_STRING"]
        assert get_json(f"{before['prefect']}/deployments/name/{name}", auth)["work_pool_name"] == "rlvf"


def test_an_up_that_is_killed_takes_its_services_along_and_down_cleans_up(up: Place) -> None:
    known = up.up()
    os.kill(known["pid"], signal.SIGKILL)
    orphan = up.supervisor("scheduler")
    os.kill(orphan, signal.SIGKILL)  # its service has lost both who would end it
    up.rlvf("down")
    until(lambda: not up.alive(), 20)
    assert can_listen(known["prefect"])
    assert can_listen(known["mlflow"])
    assert not (up.home / "up.json").exists()
    assert "nothing is up" in up.rlvf("down")
    status = up.status()
    assert (status["prefect"], status["scheduler"]) == (None, None)


def test_what_was_there_before_is_used_and_left_alone(lab: Any, up: Place) -> None:
    class Mlflow(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mlflow) as mlflow, place(up.home) as again:
        threading.Thread(target=mlflow.serve_forever, daemon=True).start()
        found = {
            **lab.access,
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{mlflow.server_port}",
            "RLVF_SCHEDULER": lab.client.scheduler.address,
        }
        with again.started("up", "--no-with-worker", **found) as process:
            until(lambda: (again.home / "up.json").exists() and again.up()["ready"])
            known = again.up()
            assert [known["prefect"], known["mlflow"], known["scheduler"]] == [
                found[name] for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "RLVF_SCHEDULER")
            ]
            assert {path.name for path in (again.home / "services").iterdir() if (path / "server.json").exists()} == {
                "worker"
            }
            os.killpg(process.pid, signal.SIGINT)
            _, err = process.communicate(timeout=30)
        assert process.returncode == 0
        assert "stopped the Prefect worker" in err
        until(lambda: not again.alive(), 10)
        assert lab.api("health") is True
        assert asked(found["RLVF_SCHEDULER"], again.home).workers
        mlflow.shutdown()
    announce(parse_address(found["RLVF_SCHEDULER"], up.home), up.home, Addresses())


@pytest.fixture(scope="module")
def working(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """`rlvf up --detach` on a machine that works, too."""
    with place(lab.fresh_home(tmp_path_factory.mktemp("working") / "home")) as where:
        where.rlvf("up", "--detach", *ANY_PORT)
        yield where
        where.rlvf("down")
        until(lambda: not where.alive(), 30)


def test_this_machine_works_too_and_a_run_that_fails_says_why(working: Place) -> None:
    workers = working.status()["workers"]
    assert {role for worker in workers for role in worker["roles"]} == {"generator", "verifier", "trainer"}
    assert working.home.stat().st_mode & 0o777 == 0o700
    config = json.dumps({"placement": {"train": ["CUDA", "TRAINER"]}})
    run = ["prefect", "deployment", "run", "rlvf/train", "--param", f"config={config}", "--watch"]
    settings = working.rlvf("status", "--shell")
    command = ["sh", "-c", f'{settings}\n exec "$0" -m "$@"', sys.executable, *run]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "COLUMNS": "2000"}
    )
    *_, last = done.stdout.strip().splitlines() or done.stderr.strip().splitlines()
    assert done.returncode == 1, done
    assert "placement.train needs CUDA and TRAINER but no worker offers CUDA" in last
    assert f"rlvf worker {working.up()['scheduler']} --roles trainer --device cuda" in last
    api, auth = working.up()["prefect"], server_password(working.home)
    failed = {"flow_runs": {"state": {"name": {"any_": ["Failed"]}}}}  # as Prefect's page filters
    # the home's database began as a copy of the lab's, whose failed runs are no deployment's
    found = until(lambda: [run for run in get_json(f"{api}/flow_runs/filter", auth, failed) if run["deployment_id"]])
    assert ["placement.train needs CUDA and TRAINER" in run["state"]["message"] for run in found] == [True], found


def test_a_run_of_a_deployment_goes_on_by_itself_when_the_scheduler_was_killed(lab: Any, working: Place) -> None:
    url = working.up()["prefect"]
    auth = auth_of(working.home, "prefect")
    config = {
        "run": "mine",
        "steps": 8,
        "held_out": 16,
        "problems": str(lab.problems),
        "policy": str(lab.policy),
        "batch": {"prompts": 4, "samples": 4, "lease": 2},
        "sampling": {"max_tokens": 12},
        "tracking": {"system_metrics": False, "report": False},
    }
    deployment = get_json(f"{url}/deployments/name/rlvf/train", auth, timeout=30)["id"]
    asked_for = {"parameters": {"config": config}}
    made = get_json(f"{url}/deployments/{deployment}/create_flow_run", auth, asked_for, timeout=30)["id"]
    run = working.home / "runs" / "mine"

    def state() -> str:
        return str(get_json(f"{url}/flow_runs/{made}", auth, timeout=30)["state"]["type"])

    def said() -> str:
        return (working.home / "logs" / "worker.log").read_text()

    until(lambda: 3 in lab.metrics(run, "groups/used"), 240, every=0.05, about=said)
    working.service("scheduler").kill()
    until(lambda: state() in ("COMPLETED", "FAILED", "CRASHED"), 240, every=0.5, about=said)
    assert state() == "COMPLETED", said()
    assert "is gone; waiting for it" in said()
    assert list(lab.metrics(run, "groups/used")) == list(lab.metrics(run, "loss/policy")) == list(range(1, 9))


def test_down_signals_no_process_of_another_machine(home_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with the_only_up(home_folder), started(sys.executable, "-c", "import time; time.sleep(100)") as innocent:
        write_up(home_folder, Up(innocent.pid, True, Addresses(), machine="nas 1 2"))
        with pytest.raises(SystemExit) as refused:
            main(["down"])
        assert refused.value.code == 2
        assert innocent.poll() is None
    assert f"rlvf up of {home_folder} runs on nas: rlvf down there" in capsys.readouterr().err


BEGINNING = """
import fcntl, os, sys, time
from pathlib import Path
from infra.services.addresses import Addresses, Up, write_up
home = Path(sys.argv[1])
(home / "services").mkdir(parents=True)
lock = (home / "services" / "up.lock").open("a")
fcntl.flock(lock, fcntl.LOCK_EX)
print("begun", flush=True)
time.sleep(1)
write_up(home, Up(os.getpid(), False, Addresses()))
time.sleep(100)
"""


def test_down_ends_an_up_that_has_not_said_yet_which_process_it_is(home_folder: Path) -> None:
    with started(sys.executable, "-c", BEGINNING, home_folder, stdout=subprocess.PIPE) as up:
        assert up.stdout is not None
        assert up.stdout.readline() == "begun\n"
        main(["down"])
        assert up.wait(30) == -signal.SIGTERM


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--storage", "/dev/null/runs"), r"storage /dev/null/runs: cannot be used"),
        (("--storage", "gopher://here/runs"), r"storage gopher://here/runs: cannot be used: Protocol not known"),
        (("--storage", "sftp://me:planted@host/runs"), r"storage: holds a password"),
        (("--host", "0.0.0.0"), r"--host '0.0.0.0' names no address"),
        (("--host", "203.0.113.7"), r"--host 203.0.113.7: is no address of this machine; it has 127.0.0.1"),
        (("--port-mlflow", "70000"), r"--port-mlflow: 70000 is no port: give 0 to 65535; 0 takes a free one"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str], home_folder: Path
) -> None:
    with pytest.raises(SystemExit) as refused:
        main(["up", *words])
    assert refused.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert "planted" not in err
    assert err.strip().count("\n") == 0
    assert not (home_folder / "services").exists()


def test_a_home_whose_certificate_is_over_is_not_opened_to_others(
    tmp_path: Path, home_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from infra.hosts import own_addresses

    if not own_addresses():
        pytest.skip("this machine has no address but loopback")
    make_authority(tmp_path / "other")
    own_certificates(home_folder)
    (certs_folder(home_folder) / "authority.key").unlink()  # a guest cannot make itself a new one
    (certs_folder(home_folder) / "machine.pem").write_text(issue(tmp_path / "other", "guest", days=-1).certificate)
    with pytest.raises(SystemExit) as refused:
        main(["up", "--host", own_addresses()[0]])
    assert refused.value.code == 2
    assert "certificate expired" in capsys.readouterr().err


@pytest.mark.parametrize("variable", ["PREFECT_API_URL", "MLFLOW_TRACKING_URI", "RLVF_SCHEDULER"])
def test_a_service_that_is_named_and_not_there_is_an_error(
    variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home_folder: Path
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")  # nothing is to be started on the way
    monkeypatch.setenv(
        variable, {"RLVF_SCHEDULER": "tcp://127.0.0.1:1"}.get(variable, "http://user:planted@127.0.0.1:1")
    )
    if variable != "PREFECT_API_URL":
        monkeypatch.setattr("infra.services.prefect_server.answers", lambda *_, **__: True)
    with pytest.raises(SystemExit) as refused:
        main(["up"])
    assert refused.value.code == 2
    err = capsys.readouterr().err
    assert variable in err
    assert "planted" not in err
    assert not (home_folder / "up.json").exists()


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


def test_other_machines_meet_certificates_and_passwords(lab: Any, tmp_path: Path) -> None:
    if os.geteuid() or not shutil.which("unshare") or subprocess.run([*ALONE, "true"], check=False).returncode:
        pytest.skip("needs root and network namespaces, for an address that other machines could reach")
    home = lab.fresh_home(tmp_path / "home")
    before = {path: path.stat().st_size for path in (home / "mlflow.db", home / "prefect" / "prefect.db")}
    with postgresql() as databases, place(home, ALONE, **databases) as first:
        first.rlvf("up", "--no-with-worker", "--detach", "--host", "10.9.0.1")
        inside = ("nsenter", f"--net=/proc/{first.up()['pid']}/ns/net")
        there = Place(home, inside, mark=first.mark)
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
        settings = there.rlvf("status", "--shell")

        def said(*words: str) -> str:
            command = [*inside, "sh", "-c", f'{settings}\n exec "$0" "$@"', sys.executable, *words]
            return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

        assert "rlvf/train" in said("-m", "prefect", "deployment", "ls")
        experiments = "from mlflow import MlflowClient; print(len(MlflowClient().search_experiments()))"
        assert int(said("-c", experiments)) >= 1
        assert (home / "secrets.json").stat().st_mode & 0o777 == 0o600
        shown = " ".join(word for process in first.alive() for word in process.cmdline()) + there.rlvf(
            "status", "--json"
        )
        for secret in map(str, passwords.values()):
            assert secret not in shown
            assert holding(home, secret) == [home / "secrets.json"]
        assert "planted-database" not in shown
        assert holding(home, "planted-database") == []
        there.rlvf("down")
        until(lambda: not first.alive(), 20)
        if not databases:
            pytest.skip("PostgreSQL is not installed (apt-get install postgresql): all of this was true on SQLite")
        assert {path: path.stat().st_size for path in before} == before  # nothing went there


def holding(folder: Path, secret: str) -> list[Path]:
    """The files in which it stands."""
    return [path for path in folder.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
