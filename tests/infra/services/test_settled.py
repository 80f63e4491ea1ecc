"""What Prefect reads of a home that somebody may have packed: nothing that runs code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.services.prefect_server import PrefectServer

HOSTILE = """version: 1
handlers: {{x: {{"()": subprocess.getoutput, cmd: "touch {mark}"}}}}
loggers: {{a: {{handlers: [x]}}}}
"""
PROFILE = 'active = "x"\n[profiles.x]\nPREFECT_LOGGING_SETTINGS_PATH = "{}"\n'
IMPORT = """
from infra.services.settled import import_prefect
import_prefect()
from prefect.logging.configuration import setup_logging
setup_logging()
"""


@pytest.mark.parametrize(
    ("file", "known"),
    [
        ("elsewhere.yml", True),
        pytest.param("elsewhere.yml", False, marks=pytest.mark.slow),
        pytest.param("logging.yml", True, marks=pytest.mark.slow),
        pytest.param("logging.yml", False, marks=pytest.mark.slow),
    ],
)
def test_files_in_the_home_run_no_code(tmp_path: Path, file: str, known: bool) -> None:
    mark, home = tmp_path / "mark", tmp_path / "home"
    folder = home / "prefect"
    folder.mkdir(parents=True, mode=0o700)
    (folder / file).write_text(HOSTILE.format(mark=mark))
    if file != "logging.yml":
        (folder / "profiles.toml").write_text(PROFILE.format(folder / file))
    environment = PrefectServer(home, print).environment
    assert environment["PREFECT_HOME"] == str(folder)
    if not known:  # the same files, by Prefect's own ways, do: this test would see it
        environment = {"PREFECT_HOME": str(folder)}
    subprocess.run([sys.executable, "-c", IMPORT], check=True, env=os.environ | environment, timeout=120)
    assert mark.exists() != known
