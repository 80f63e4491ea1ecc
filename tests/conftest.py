"""No test reads or writes the state of whoever runs the suite, and none asks a network for a model."""

import os
import shutil
import tempfile
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

# At once, not in a hook: libraries read these when they are imported, and the conftest files below import them.
STATE = Path(tempfile.mkdtemp(prefix="rlvf-tests-"))
for name in [name for name in os.environ if name.startswith(("PREFECT_", "RLVF_", "MLFLOW_"))]:
    del os.environ[name]
os.environ["RLVF_HOME"] = str(STATE / "home")
os.environ["PREFECT_HOME"] = str(STATE / "prefect")
os.environ["HF_HUB_OFFLINE"] = "1"
# not in the work tree; it outlives the session, so that what failed once is tried first the next time
set_hypothesis_home_dir(Path(tempfile.gettempdir(), f"rlvf-hypothesis-{os.getuid()}"))


def pytest_unconfigure() -> None:
    resource_tracker._resource_tracker._stop()  # it would outlive this process for a moment
    shutil.rmtree(STATE, ignore_errors=True)


@pytest.fixture(autouse=True)
def home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$RLVF_HOME of this test; it does not exist yet."""
    folder = tmp_path / "home"
    monkeypatch.setenv("RLVF_HOME", str(folder))
    return folder
