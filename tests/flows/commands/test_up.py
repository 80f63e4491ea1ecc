"""`rlvf up` and `rlvf status`: real services, real signals."""

import http.cookiejar
import http.server
import json
import os
import signal
import socket
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.benches.place import ANY_PORT, MarkedHome, marked_home
from flows.commands.deployments import Registration
from flows.commands.up import _detach
from infra.cluster.reach import parse_address
from infra.security.identity import install_bundle, issue
from infra.services.addresses import Addresses
from infra.services.gate import KEY, basic
from infra.services.passwords import auth_of
from infra.services.prefect_api import PrefectApi
from infra.services.scheduler import Seen, announce, ask
from infra.services.served import mlflow_access
from tests.processes import MARK, of_each, until
from tests.strangers import refused, status

pytestmark = pytest.mark.slow

PLANTED = {
    "AWS_ACCESS_KEY_ID": "tester",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_SECRET_ACCESS_KEY": "planted-aws",
    "PREFECT_SERVER_API_AUTH_STRING": "someone:planted-prefect",
}
DEPLOYMENTS = ("rlvf/train", "rlvf-sft/warm-up", "rlvf-dpo/train", "rlvf-reward-model/train", "rlvf-eval/scheduled")


def asked(scheduler: str, home: Path) -> Seen:
    return ask(parse_address(scheduler, home), home)


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
def up(lab: Any, endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MarkedHome]:
    """`rlvf up --detach` on free ports, on S3, with secrets in its environment."""
    home = lab.fresh_home(tmp_path_factory.mktemp("up") / "home")
    with marked_home(home, **PLANTED, PREFECT_API_AUTH_STRING=PLANTED["PREFECT_SERVER_API_AUTH_STRING"]) as where:
        kept = ("--storage", "s3://there/rlvf", "--storage-endpoint", endpoint)
        said = where.rlvf("up", "--no-with-worker", "--detach", *ANY_PORT, *kept)
        assert "stop it with: rlvf down" in said
        yield where


def test_status_tells_where_everything_is_and_that_it_answers(up: MarkedHome) -> None:
    status = up.status()
    assert status["answers"] == dict.fromkeys(("prefect", "mlflow", "scheduler", "storage"), True)
    assert status["storage"] == "s3://there/rlvf"
    assert status["workers"] == []
    assert {name: status[name] for name in ("prefect", "mlflow", "scheduler")} == {
        name: up.up()[name] for name in ("prefect", "mlflow", "scheduler")
    }


def test_of_two_that_come_up_at_once_the_second_has_what_it_asked_for(
    up: MarkedHome, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RLVF_HOME": str(up.home), MARK: up.mark, **up.env}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["rlvf", "up", "--detach"])
    _detach(up.home)  # as a command that found nothing up yet
    out, err = capfd.readouterr()
    assert f"{KEY}=" in out
    logged = (up.home / "logs" / "up.log").read_text()
    assert "it is up already" in logged
    assert f"{KEY}=" not in logged + err


def test_whoever_knows_the_scheduler_learns_the_rest(up: MarkedHome, tmp_path: Path) -> None:
    assert up.up()["scheduler"].startswith("tls://127.0.0.1:")  # another user of this machine reaches it
    with MarkedHome(tmp_path).started("status", "--scheduler", up.up()["scheduler"]) as stranger:
        said, _ = stranger.communicate(timeout=90)
        assert up.up()["storage"] not in said
        assert "certificate" in said
    issue(up.home, "other").write(tmp_path / "other.bundle")
    install_bundle(tmp_path / "other.bundle", tmp_path)
    status = MarkedHome(tmp_path).status("--scheduler", up.up()["scheduler"])
    assert status["prefect"] == up.up()["prefect"]
    assert status["mlflow"] == up.up()["mlflow"]
    assert status["storage"] == "s3://there/rlvf"
    assert not (tmp_path / "secrets.json").exists()  # a guest has no password, and looking makes none


def test_the_artifacts_of_mlflow_lie_on_the_storage(
    up: MarkedHome, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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


def test_a_page_of_a_stranger_is_refused_on_every_port(up: MarkedHome) -> None:
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


def test_the_links_that_are_printed_open_the_pages(up: MarkedHome) -> None:
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


def test_a_second_up_says_that_it_is_up_already(up: MarkedHome) -> None:
    before = set(up.alive())
    said = up.rlvf("up")
    assert "it is up already" in said
    assert up.up()["mlflow"] in said
    until(lambda: set(up.alive()) <= before)


def test_secrets_of_the_environment_are_written_nowhere(up: MarkedHome) -> None:
    secrets = ("planted-aws", "planted-prefect")
    shown = [" ".join(words) for words in of_each(up.alive(), psutil.Process.cmdline)]
    shown += [
        up.rlvf("status"),
        up.rlvf("status", "--json"),
        json.dumps(asked(up.up()["scheduler"], up.home).services, default=vars),
    ]
    files = [path for path in up.home.rglob("*") if path.is_file()]
    for secret in secrets:
        assert not [text for text in shown if secret in text]
        assert not [path for path in files if secret.encode() in path.read_bytes()]


def test_deployments_that_are_there_are_left_as_they_are(up: MarkedHome, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_is_killed_comes_back_at_its_address_and_knows_what_it_knew(up: MarkedHome) -> None:
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
    api = PrefectApi(before["prefect"], PLANTED["PREFECT_SERVER_API_AUTH_STRING"])
    for name in DEPLOYMENTS:
        assert api.ask(f"deployments/name/{name}")["work_pool_name"] == "rlvf"


def test_an_up_that_is_killed_takes_its_services_along_and_down_cleans_up(up: MarkedHome) -> None:
    known = up.up()
    os.kill(known["pid"], signal.SIGKILL)
    orphan = up.supervisor("scheduler")
    os.kill(orphan, signal.SIGKILL)  # its service has lost both who would end it
    up.rlvf("down")
    until(lambda: not up.alive(), 90)
    assert can_listen(known["prefect"])
    assert can_listen(known["mlflow"])
    assert not (up.home / "up.json").exists()
    assert "nothing is up" in up.rlvf("down")
    status = up.status()
    assert (status["prefect"], status["scheduler"]) == (None, None)


def test_what_was_there_before_is_used_and_left_alone(lab: Any, up: MarkedHome) -> None:
    class Mlflow(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mlflow) as mlflow, marked_home(up.home) as again:
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
            _, err = process.communicate(timeout=90)
        assert process.returncode == 0
        assert "stopped the Prefect worker" in err
        until(lambda: not again.alive(), 90)
        assert lab.api("health") is True
        assert asked(found["RLVF_SCHEDULER"], again.home).workers
        mlflow.shutdown()
    announce(parse_address(found["RLVF_SCHEDULER"], up.home), up.home, Addresses())
