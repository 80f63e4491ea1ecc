"""What only shows when servers, workers or a storage are asked: one line, and nothing is left behind."""

import json
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from tests.processes import until

pytestmark = pytest.mark.usefixtures("own_signals_and_environment")


@pytest.mark.slow
def test_a_mistake_that_only_the_cluster_can_tell_is_one_line_too(lab: Any) -> None:
    name, options = lab.new_name(), {"placement.generate": "GENERATOR,CUDA"}
    line = "placement.generate needs GENERATOR and CUDA but no worker offers CUDA. Workers: "
    asked = {"run": name, "cluster.scheduler": lab.client.scheduler.address, **options}
    with lab.command("train", options=asked) as command:
        code, out, err = command.finish()
        until(lambda: not command.alive())
    assert (code, out) == (2, "")
    joining = f"joining the cluster of {lab.client.scheduler.address}"
    assert err.startswith(f"start\nhome {lab.home} ($RLVF_HOME)\n{joining}\nrlvf: {line}")
    assert err.count("\n") == 4
    assert not lab.run_folder(name).exists()


@pytest.mark.slow
def test_a_tracking_uri_that_mlflow_does_not_know_leaves_no_run(lab: Any) -> None:
    name = lab.new_name()
    asked = {"run": name, "cluster.scheduler": lab.client.scheduler.address, "tracking.uri": "nosuch://place"}
    with lab.command("train", options=asked) as command:
        code, out, err = command.finish()
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("rlvf: tracking.uri nosuch://place: no MLflow run could be created (")
    assert "Traceback" not in err
    assert not lab.run_folder(name).exists()


@pytest.mark.slow
def test_servers_and_workers_that_were_started_in_vain_are_gone_afterwards(lab: Any, tmp_path: Path) -> None:
    home = lab.fresh_home(tmp_path / "another")
    with lab.command("train", options={"cluster.generators": "0"}, home=home) as command:
        code, out, err = command.finish()
        until(lambda: not command.alive())
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if line.startswith("rlvf: ")]
    assert line.startswith(
        "rlvf: placement.generate needs GENERATOR but no worker offers GENERATOR. Workers: trainer: "
    )
    assert line.endswith(". Ask for one: --cluster.generators 1")
    assert "Traceback" not in err
    assert not (home / "runs").exists()


@pytest.mark.slow
def test_a_port_in_use_is_passed_over_and_said(lab: Any, tmp_path: Path) -> None:
    home = lab.fresh_home(tmp_path / "another")
    quick = {"warm_up.steps": "2", "warm_up.batch": "4"}
    with socket.socket() as taken:
        with suppress(OSError):  # then it is in use already
            # as servers do: a connection of the test before may linger there
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", 4200))
            taken.listen()
        with lab.command("sft", "--json", options=quick, home=home) as command:
            code, out, err = command.finish()
            until(lambda: not command.alive())
    assert code == 0, err
    assert Path(json.loads(out)["policy"]).parent == home / "warmup"
    (line,) = [line for line in err.splitlines() if "port 4200" in line]
    assert line.startswith("port 4200 is in use: the Prefect server listens on ")
    assert 0 < int(line.rpartition(" ")[2]) != 4200


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["train", "--run", "s3://nobody/run"],
        ["train", "--resume", "s3://nobody/run"],
        ["train", "--config", "s3://nobody/my.yaml"],
        ["report", "s3://nobody/run"],
        ["eval", "--policy", "s3://nobody/run"],
        ["train"],
    ],
)
@pytest.mark.parametrize("lacking", ["credentials", "endpoint"])
def test_a_storage_that_cannot_be_used_is_one_line(
    words: list[str], lacking: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs: install the extra 's3'")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    if words == ["train"]:
        monkeypatch.setenv("RLVF_STORAGE", "s3://nobody/storage")
    if lacking == "endpoint":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tester's")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"rlvf: {words[-1] if len(words) > 1 else 's3://nobody/storage/runs'}: ")
    assert ("AWS_ACCESS_KEY_ID" if lacking == "credentials" else "AWS_ENDPOINT_URL_S3") in line
    s3fs.S3FileSystem.clear_instance_cache()
