"""A run that has lost its checkpoints ends, and keeps what it has: it is not begun anew."""

import os
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from signal import SIGKILL, SIGSTOP
from typing import Any

import pytest

from infra.runs.remains import CheckpointsLostError
from tests.processes import until

OF_A_SESSION = {"about.json", "timeline.jsonl", "report.html", "reward.svg"}  # what it says of itself, and its lock


def kept(run: Path) -> dict[str, str]:
    """The digest of every file of the run by its name."""
    files = [path for path in run.rglob("*") if path.is_file() and path.name not in OF_A_SESSION]
    return {
        name: sha256(file.read_bytes()).hexdigest()
        for file in files
        if not (name := file.relative_to(run).as_posix()).startswith("lock/")
    }


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.slow
def test_a_run_without_a_whole_checkpoint_ends_and_loses_nothing(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    name = lab.new_name()
    run = lab.run_folder(name)
    lab.settle()
    _, pid = lab.worker("trainer")
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(lab.train, run=str(run), steps="200", staleness="0", checkpoint__keep_last="1")
        try:
            until(lambda: 3 in lab.metrics(run, "groups/used") or training.done())
            os.kill(pid, SIGSTOP)  # so that it saves no other
            for state in (run / "state").glob("[0-9]*"):
                flip(state / "model.safetensors")
            before = {each: digest for each, digest in kept(run).items() if each.startswith(("state/", "weights/"))}
        finally:
            os.kill(pid, SIGKILL)
        with pytest.raises(CheckpointsLostError) as ended:
            training.result(240)
    line = str(ended.value)
    assert line.startswith(f"{run} cannot go on: it has been at version ")
    assert "is torn: 'model.safetensors' does not match the digest in its manifest" in line
    assert f"Its last weights are at {run}/weights/v" in line
    assert "made again" not in capsys.readouterr().err
    left = kept(run)
    assert before.items() <= left.items()
    assert {"state/", "weights/"} <= {each.partition("/")[0] + "/" for each in before}
    assert min(lab.metrics(run, "groups/used")) == 1

    logged = lab.mlflow(run)[1].info.run_id
    with lab.command("train", "--resume", name, options={"cluster.scheduler": lab.client.scheduler.address}) as command:
        code, _, err = command.finish(240)
    assert code == 1, err
    assert err.splitlines()[-1] == f"rlvf: {line} (set RLVF_TRACEBACK=1 for the whole story)"
    assert "go on with" not in err
    assert kept(run) == left
    assert lab.mlflow(run)[1].info.run_id == logged
