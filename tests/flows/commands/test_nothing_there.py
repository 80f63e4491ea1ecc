"""What a command names and is not there, said in one line before anything starts."""

from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("own_signals_and_environment", "home_folder")
NOWHERE = "http://127.0.0.1:1"  # a port that nobody may listen on unseen


@pytest.mark.slow
def test_a_prefect_server_that_is_not_there_is_one_line(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", f"{NOWHERE}/api")
    assert refused("train") == (
        f"PREFECT_API_URL = '{NOWHERE}/api': no Prefect API answers there; start it, or unset the variable to use a "
        "local server"
    )


@pytest.mark.parametrize("uri", [NOWHERE, NOWHERE.replace("//", "//me:secret@")])
def test_an_mlflow_server_that_is_not_there_is_one_line(refused: Callable[..., str], uri: str) -> None:
    line = refused("train", "--tracking.uri", uri)
    assert line.startswith(f"tracking.uri: no MLflow server answers at {NOWHERE} (")
    assert "secret" not in line
    assert line.endswith("; start it, or leave it out to use a file under the home")


def test_a_variable_that_names_an_mlflow_server_is_called_by_its_name(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    line = refused("train")
    assert line.startswith(f"MLFLOW_TRACKING_URI: no MLflow server answers at {NOWHERE} (")
    assert line.endswith("; start it, or unset it to use a file under the home")


def test_a_run_without_weights_is_refused_before_anything_starts(
    refused: Callable[..., str], home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = home_folder / "runs" / "bare"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("{}")
    monkeypatch.setattr("flows.commands.eval.in_workplace", None)
    assert refused("eval", "--policy", "bare") == (
        f"{run} has published no weights yet: `rlvf train --resume` goes on with it"
    )
