"""Where rlvf keeps its things."""

import os
from pathlib import Path


def rlvf_home() -> Path:
    """The folder of all state: `$RLVF_HOME`, or `.rlvf` in the working directory."""
    return Path(os.environ.get("RLVF_HOME") or ".rlvf").expanduser().absolute()


def rlvf_storage() -> str:
    """Where runs and models lie that are named without a place: the URI `$RLVF_STORAGE`, or the home."""
    return (os.environ.get("RLVF_STORAGE") or str(rlvf_home())).rstrip("/")


def runs_uri() -> str:
    """Where runs lie that are named without a place."""
    return f"{rlvf_storage()}/runs"
