"""Prefect, imported without settings of others.

Prefect reads `.env`, `prefect.toml` and `pyproject.toml` in the working directory, and `profiles.toml` and
`logging.yml` in its own folder, which can run code: any folder in which a run is started would, as it may hold a home.

    python -P -m infra.services.settled worker start …      Prefect's own command; $RLVF_HOME is set
"""

import os
import runpy
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path


def own_files() -> dict[str, str]:
    """Settings in place of the files in Prefect's folder: no profile, and how Prefect logs by default."""
    package = find_spec("prefect")  # without importing it
    assert package is not None
    assert package.origin is not None
    logging = Path(package.origin).parent / "logging" / "logging.yml"
    return {"PREFECT_PROFILES_PATH": os.devnull, "PREFECT_LOGGING_SETTINGS_PATH": str(logging)}


def import_prefect() -> None:
    """Import Prefect, which reads its settings then, from the environment."""
    with _apart():
        import prefect.context
        import prefect.main  # noqa: F401


def read_settings_again() -> None:
    """Have Prefect read its settings again, from an environment that has changed."""
    with _apart():
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()


@contextmanager
def _apart() -> Iterator[None]:
    """Work in a directory that only the system's owner writes to."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chdir("/")
        yield
    finally:
        os.fchdir(here)
        os.close(here)


if __name__ == "__main__":
    # Prefect makes a folder of a fixed name in the temporary one, which is every user's: whoever comes first has it.
    # Not by TMPDIR, which the runs would inherit: what they leave has no business in the home
    own = Path(os.environ["RLVF_HOME"]) / "services" / "prefect-worker"
    own.mkdir(parents=True, exist_ok=True, mode=0o700)
    tempfile.tempdir = str(own)
    import_prefect()
    sys.argv[0] = "prefect"
    runpy.run_module("prefect", run_name="__main__")
