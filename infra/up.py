"""What `rlvf up` says of the services that it runs: `<home>/up.json`."""

import json
from pathlib import Path


def running_services(home: Path) -> dict[str, str]:
    """The addresses in `up.json`: prefect, mlflow, scheduler, dashboard, storage. Empty where none is."""
    try:
        said = json.loads((home / "up.json").read_text())
    except (OSError, ValueError):
        return {}
    return {name: value for name, value in said.items() if isinstance(value, str)} if isinstance(said, dict) else {}


def running_scheduler(home: Path) -> str | None:
    """The address of the scheduler in `up.json`."""
    return running_services(home).get("scheduler")
