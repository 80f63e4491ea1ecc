"""The command as it is installed, given where files are called like our modules and those of others."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.benches.place import ANY_PORT, MarkedHome, marked_home
from tests.processes import MARK, started, until

RLVF = Path(sys.executable).parent / "rlvf"
OURS = ("flows", "tasks", "rl", "infra")
OTHERS = ("numpy", "torch", "multiprocessing", "json", "prefect", "dask", "distributed", "mlflow", "uvicorn")
SETTINGS = "version: 1\nformatters:\n  any:\n    (): os.mkdir\n    path: {}\n"
REWARD = "import json\n\ndef reward(problem, completion):\n    return float(problem.target in completion)\n"


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A directory; `taken` in it lists the modules of it that somebody has imported."""
    folder = tmp_path / "trap"
    folder.mkdir()
    for name in (*OURS, *OTHERS):
        words = (
            f"open({str(folder / 'taken')!r}, 'a').write('{name}\\n')\nraise SystemExit('{name} of the directory')\n"
        )
        (folder / f"{name}.py").write_text(words)
    (folder / "my_reward.py").write_text(REWARD)
    settings = folder / "logging.yml"  # of Prefect, which makes a folder when it is taken
    settings.write_text(SETTINGS.format(folder / "settings taken"))
    (folder / ".env").write_text(f"PREFECT_LOGGING_CONFIG_PATH={settings}\n")
    (folder / "prefect.toml").write_text(f"[logging]\nconfig_path = {str(settings)!r}\n")
    (folder / "pyproject.toml").write_text(f"[tool.prefect.logging]\nconfig_path = {str(settings)!r}\n")
    return folder


def environment(home: Path, mark: str, **more: str) -> dict[str, str]:
    left_out = ("PREFECT_", "RLVF_", "MLFLOW_", "AWS_", "PYTHONSAFEPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {**kept, "RLVF_HOME": str(home), MARK: mark, **more}


def rlvf(trap: Path, where: MarkedHome, *words: str, **more: str) -> str:
    """What the command says, once it has ended well."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(RLVF, *words, cwd=trap, env=environment(where.home, where.mark, **more), **pipes) as process:
        out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    return out


def taken(trap: Path) -> str:
    assert not (trap / "settings taken").exists()
    found = trap / "taken"
    return found.read_text() if found.exists() else ""


@pytest.mark.slow
def test_a_run_its_evaluation_and_verifiers_take_no_module_of_the_directory(
    lab: Any, trap: Path, tmp_path: Path
) -> None:
    reward = {"verifier": "my_reward.py:reward", "problems": str(lab.problems)}
    options = lab.options(run="trapped", steps="1", cluster__scheduler=None, cluster__threads="1", **reward)
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    with marked_home(lab.fresh_home(tmp_path / "home")) as where:
        rlvf(trap, where, "train", *words, **lab.access)
        assert taken(trap) == ""
        rlvf(trap, where, "eval", "--policy", "trapped", "--cluster.threads", "1", **lab.access)
        assert taken(trap) == ""
        said = rlvf(trap, where, "verify", "my_reward.py:reward", "--problems", str(lab.problems))
        assert "reward" in said
        assert taken(trap) == ""
        serve = (RLVF, "verifier", "serve", "--verifier", "my_reward.py:reward", "--json", "--port", "0")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with started(*serve, cwd=trap, env=environment(where.home, where.mark), **pipes) as serving:
            assert serving.stdout is not None
            assert "url" in serving.stdout.readline()  # it has loaded the function by then
            serving.terminate()
        assert taken(trap) == ""


@pytest.mark.slow
def test_what_stays_in_the_background_takes_no_module_of_the_directory(lab: Any, trap: Path, tmp_path: Path) -> None:
    with marked_home(lab.fresh_home(tmp_path / "home")) as where:
        rlvf(trap, where, "up", "--detach", *ANY_PORT)  # with workers on this machine
        assert taken(trap) == ""
        joining = (RLVF, "worker", where.up()["scheduler"], "--name", "second", "--roles", "generator")
        with started(*joining, cwd=trap, env=environment(where.home, where.mark)) as worker:

            def joined() -> bool:
                assert worker.poll() is None
                return any(each["name"].startswith("second") for each in where.status()["workers"])

            until(joined, 120)
            assert taken(trap) == ""
            worker.terminate()
            worker.wait(60)
        rlvf(trap, where, "down")
        assert taken(trap) == ""
