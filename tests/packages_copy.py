"""A copy of the packages, for tests that add a file to them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def packages_in(folder: Path) -> Path:
    """The folder, which has a copy of each."""
    for package in ("flows", "tasks", "rl", "infra"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def ran(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What Python did with the copy in place of the packages."""
    here = os.environ | {"PYTHONPATH": str(copy), "RLVF_HOME": str(copy / "home"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=here, capture_output=True, text=True, timeout=300, check=False
    )
