"""Which scheduler a command means: of its option, else the environment, this home's `rlvf up`, the bundle."""

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.cli import main
from infra.security.bundles import read_bundle
from infra.security.identity import issue, own_certificates
from infra.services.addresses import Addresses
from infra.services.of_home import known_addresses
from tests.flows.commands.refusals import refused

pytestmark = pytest.mark.usefixtures("own_signals_and_environment")
ENVIRONMENT, UP, BUNDLE = (f"tcp://127.0.0.1:{port}" for port in (7, 8, 9))  # nobody listens at any of them


@pytest.fixture
def home(home_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home with an `rlvf up` and a bundle, in an environment that names a third scheduler."""
    own_certificates(home_folder)
    (home_folder / "up.json").write_text(json.dumps({"scheduler": UP, "pid": 1}))
    (home_folder / "certs" / "settings.json").write_text(json.dumps({"machine": "box", "scheduler": BUNDLE}))
    monkeypatch.setenv("RLVF_SCHEDULER", ENVIRONMENT)
    (home_folder / "services").mkdir(exist_ok=True)
    with (home_folder / "services" / "up.lock").open("a") as lock:  # as an `up` that lives holds it
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield home_folder


def forget(home: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    if what == ENVIRONMENT:
        monkeypatch.delenv("RLVF_SCHEDULER")
    elif what == UP:
        (home / "up.json").unlink()


@pytest.mark.slow
def test_every_command_means_the_same_one(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for meant in (ENVIRONMENT, UP, BUNDLE):
        assert refused(["worker"], capsys).startswith(f"rlvf: {meant}: nothing listens there")
        main(["status", "--json"])
        assert json.loads(capsys.readouterr().out)["scheduler"] == meant
        with pytest.raises(SystemExit):
            main(["doctor", "--json"])
        checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}
        assert checks["scheduler"]["state"] == "fail"
        assert checks["scheduler"]["found"].startswith(f"{meant}: nothing listens there")
        main(["certs", "jetson", "--out", str(tmp_path / "bundle")])
        capsys.readouterr()
        assert read_bundle(tmp_path / "bundle").scheduler == meant
        forget(home, monkeypatch, meant)


def test_what_the_command_itself_says_wins(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = "tcp://127.0.0.1:11"
    assert known_addresses(home, given) == Addresses(scheduler=given)
    assert refused(["worker", given], capsys).startswith(f"rlvf: {given}: ")
    bundle = issue(home, "guest", scheduler=BUNDLE)
    bundle.write(tmp_path / "guest.bundle")
    monkeypatch.setenv("RLVF_HOME", str(tmp_path / "guest"))
    assert refused(["worker", "--bundle", str(tmp_path / "guest.bundle")], capsys).startswith(f"rlvf: {BUNDLE}: ")


@pytest.mark.usefixtures("home")
def test_a_shell_with_an_outdated_environment_is_told_of_this_homes_up(capsys: pytest.CaptureFixture[str]) -> None:
    main(["status", "--shell"])
    assert f"export RLVF_SCHEDULER={UP}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--resume", "mine"],
        ["train", "--problems", "no.csv"],
        ["eval", "--problems", "no.csv"],
        ["report", "mine"],
    ],
)
def test_who_does_not_use_what_runs_here_is_told(
    words: list[str], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def said() -> list[str]:
        with pytest.raises(SystemExit):
            main(words)
        return [line for line in capsys.readouterr().err.splitlines() if 'eval "$(rlvf status --shell)"' in line]

    (home / "up.json").write_text(json.dumps({"scheduler": UP, "storage": "s3://b/rlvf", "pid": 1}))
    assert said() == []  # another scheduler is named
    monkeypatch.delenv("RLVF_SCHEDULER")
    (line,) = said()
    both = f"scheduler {UP} and storage s3://b/rlvf"
    assert f"this shell does not use its {'storage s3://b/rlvf' if 'mine' in words else both}; " in line
    (home / "services" / "up.lock").unlink()
    assert said() == []


def test_what_a_killed_up_has_left_comes_last(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLVF_SCHEDULER")
    assert known_addresses(home).scheduler == UP
    (home / "services" / "up.lock").unlink()
    assert known_addresses(home).scheduler == BUNDLE
    (home / "certs" / "settings.json").unlink()
    assert known_addresses(home).scheduler == UP


def test_a_storage_written_with_a_slash_is_the_same_one() -> None:
    own = Addresses(storage="s3://b/rlvf", storage_endpoint="http://here")
    assert Addresses(storage="s3://b/rlvf/").or_else(own).storage_endpoint == "http://here"
    assert Addresses(storage="s3://c").or_else(own).storage_endpoint is None
