"""`rlvf status` where nothing runs; where something does, in `test_up.py`."""

from dataclasses import asdict
from pathlib import Path

import pytest

from flows.cli import main
from flows.commands.status import lines
from infra.services.addresses import Addresses
from infra.services.passwords import auth_of
from infra.services.scheduler import WorkerSeen

pytestmark = pytest.mark.usefixtures("own_signals_and_environment")


def test_where_nothing_runs_yet_nothing_reads_as_if_it_were_broken(
    capsys: pytest.CaptureFixture[str], home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["status"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines[:3]] == [
        [name, "not started"] for name in ("prefect", "mlflow", "scheduler")
    ]
    assert lines[3].split() == ["storage", "none", "yet", str(home_folder)]
    assert lines[4].startswith("nothing runs here now, and nothing has to: rlvf train starts what it needs; rlvf up ")
    assert len(lines) == 5
    assert not home_folder.exists()
    # but what was named and is not there is not there
    monkeypatch.setenv("RLVF_STORAGE", str(home_folder.parent / "file" / "within"))
    (home_folder.parent / "file").touch()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    main(["status"])
    shown = capsys.readouterr().out
    assert shown.count("no answer") == 2
    assert "unknown" in shown
    assert "nothing runs here" not in shown


@pytest.mark.parametrize(
    ("scheduler", "said"),
    [
        (
            "tls://127.0.0.1:8786",
            "none yet; on the scheduler's own machine: rlvf worker tls://127.0.0.1:8786; for others: ",
        ),
        ("tls://192.168.1.5:8786", "none yet; on any machine: rlvf worker tls://192.168.1.5:8786"),
    ],
)
@pytest.mark.usefixtures("home_folder")
def test_no_machine_is_sent_to_an_address_that_is_another_s_own(scheduler: str, said: str) -> None:
    alive = dict.fromkeys(("prefect", "mlflow", "scheduler", "storage"), True)
    (shown,) = [line for line in lines(Addresses(scheduler=scheduler), alive, [], [], "") if "none yet" in line]
    assert shown.startswith(said)
    assert ("`rlvf up --host ADDRESS`" in shown) == ("127" in scheduler)


@pytest.mark.usefixtures("home_folder")
def test_who_gets_no_more_leases_is_shown_with_the_reason() -> None:
    alive = dict.fromkeys(("prefect", "mlflow", "scheduler", "storage"), True)
    workers = [
        asdict(WorkerSeen("laptop", "tcp://1", excluded="in first: far off")), asdict(WorkerSeen("jetson", "tcp://2")),
    ]  # fmt: skip
    shown = lines(Addresses(scheduler="tls://192.168.1.5:8786"), alive, workers, [], "")
    assert [line for line in shown if "leases" in line] == ["laptop gets no more leases in first: far off"]


def test_a_shell_is_given_nothing_that_is_dead_and_told_so(
    capsys: pytest.CaptureFixture[str], home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main(["status", "--shell"])
    out, err = capsys.readouterr()
    assert out == f"export RLVF_STORAGE={home_folder}\n"
    assert err == "rlvf: nothing answers here, so no service is given: rlvf up starts them\n"
    # as `eval "$(rlvf status --shell)"` has left them, before `rlvf down`
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", auth_of(home_folder, "prefect"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("RLVF_SCHEDULER", "tcp://127.0.0.1:9")
    main(["status", "--shell"])
    out, err = capsys.readouterr()
    assert out == f"export RLVF_STORAGE={home_folder}\n"
    assert "unset PREFECT_API_URL MLFLOW_TRACKING_URI RLVF_SCHEDULER\n" in err
    assert "that answers" not in err
