"""The deployments of `prefect.yaml`, registered once on each server, and again when they change."""

import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

import flows
from flows.config import EvalConfig, TrainConfig
from flows.finetune_config import DpoConfig, RewardModelConfig, SftConfig
from infra import disk
from infra.services.prefect_server import prefect_api
from infra.services.supervisor import ServiceError

NAMES = ("rlvf/train", "rlvf-sft/warm-up", "rlvf-dpo/train", "rlvf-reward-model/train", "rlvf-eval/scheduled")


def manifest() -> Path:
    """The path of `prefect.yaml`: beside the packages, or where an installation puts it. Raises `ServiceError`."""
    places = (Path(flows.__path__[0]).parent, Path(sysconfig.get_path("data")) / "share" / "rlvf")
    for place in places:
        if (place / "prefect.yaml").is_file():
            return place / "prefect.yaml"
    raise ServiceError(f"prefect.yaml is in none of {', '.join(map(str, places))}; install rlvf again")


class Registration:
    """Registers the deployments in a process of its own; called again until it returns True.

    Deployments made from the same file and the same configuration trees are left alone: a change on the page, such as a
    schedule that is turned on, stays.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._kept = home / "services" / "deployments.json"
        self._log = home / "logs" / "deployments.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self, environment: Mapping[str, str], url: str) -> bool:
        """Whether they are registered. Raises `OSError` while the API is away, `ServiceError` when it refuses them."""
        if self._process is None:
            if self._are_there(url):
                return True
            folder = self._home / "services" / "deployments"  # prefect reads settings from its working directory
            folder.mkdir(parents=True, exist_ok=True)
            self._log.parent.mkdir(parents=True, exist_ok=True)
            command = [sys.executable, "-P", "-m", "prefect", "--no-prompt", "deploy", "--all"]
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    [*command, "--prefect-file", str(manifest())],
                    cwd=folder,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
        code = self._process.poll()
        if code is None:
            return False
        self._process = None
        if code:
            raise ServiceError(f"the deployments of {manifest()} were not registered; {self._log} says why")
        disk.write_file(self._kept, json.dumps({"of": _digest(), "at": url}).encode())
        return True

    def stop(self) -> None:
        """Kill the process, if there is one."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _are_there(self, url: str) -> bool:
        try:
            kept = json.loads(self._kept.read_text())
        except (OSError, ValueError):
            return False
        if kept != {"of": _digest(), "at": url}:
            return False
        api = prefect_api(self._home, url)
        return all(api.has(f"deployments/name/{name}") for name in NAMES)


def _digest() -> str:
    """A digest of all that the deployments are made from."""
    schemas = [
        model.model_json_schema() for model in (TrainConfig, SftConfig, DpoConfig, RewardModelConfig, EvalConfig)
    ]
    return hashlib.sha256(manifest().read_bytes() + json.dumps(schemas, sort_keys=True).encode()).hexdigest()
