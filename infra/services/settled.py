"""Prefect, imported without the settings of the directory that somebody stands in.

It reads `.env`, `prefect.toml` and `pyproject.toml` there, and what these name can run code: a folder of anybody's
would do so for whoever starts a run in it.

    python -P -m infra.services.settled worker start …      Prefect's own command
"""

import os
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def import_prefect() -> None:
    """Import Prefect, whose settings are read once, from its home and the environment of this moment."""
    with _apart():
        import prefect.context
        import prefect.main  # noqa: F401


def read_settings_again() -> None:
    """Follow what has changed in the environment since."""
    with _apart():
        from prefect.context import refresh_global_settings_context

        refresh_global_settings_context()


@contextmanager
def _apart() -> Iterator[None]:
    """Stand where only the system's owner writes."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chdir("/")
        yield
    finally:
        os.fchdir(here)
        os.close(here)


if __name__ == "__main__":
    import_prefect()
    sys.argv[0] = "prefect"
    runpy.run_module("prefect", run_name="__main__")
