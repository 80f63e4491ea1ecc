"""Probes: a few steps of training for each worker that could train; every other call goes to all that can do it.

They are runs like any other, named `probe-…`, of the real work on the real links; the first call of each worker is left
out of what is measured (`flows.planner.measured`).
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from flows.config import TrainConfig
from flows.options.reading import to_yaml
from flows.planner.measured import FEWEST
from infra.cluster.cluster import workers
from infra.cluster.cluster_config import ClusterConfig, joined_scheduler
from infra.cluster.costs import Places
from infra.cluster.placement import WORKER, PlacementConfig
from infra.cluster.reach import parse_address
from infra.home import rlvf_home
from infra.services.scheduler import ask

STEPS = FEWEST + 2
COMPUTING = ("GENERATOR", "TRAINER", "REFERENCE", "CRITIC")  # tags of workers that run models
TRAINED = ("train", "train_critic")  # calls that one worker has at a time


class ProbeError(RuntimeError):
    """A probe that did not come to its end."""


def tags_of_workers(config: ClusterConfig) -> dict[str, frozenset[str]]:
    """The tags of each worker of the cluster, or of the local one that would be started."""
    address = joined_scheduler(config)
    if address is not None:
        home = rlvf_home()
        seen = ask(parse_address(address, home), home).workers
        return {worker.name: frozenset(tag for tag, n in worker.resources.items() if n >= 1) for worker in seen}
    return {name: frozenset(each["options"]["resources"]) for name, each in workers(config).items()}


def probes(config: TrainConfig, tags: Mapping[str, frozenset[str]], name: str) -> Iterator[TrainConfig]:
    """The configurations of the probes, one for each worker that may train."""
    computing = [f"{WORKER}{worker}" for worker in sorted(tags) if tags[worker] & set(COMPUTING)]
    judging = [f"{WORKER}{worker}" for worker in sorted(tags) if "VERIFIER" in tags[worker]]
    if not computing or not judging:
        lacking = " or ".join(COMPUTING) if not computing else "VERIFIER"
        raise ValueError(f"no worker of the cluster offers {lacking}; see rlvf status")
    for trainer in computing:
        placement = dict.fromkeys(config.placement.calls, computing)
        placement |= {"verify": judging, "train": [trainer], "train_critic": [trainer], "value": [trainer]}
        changed: dict[str, object] = {
            "steps": STEPS,
            "run": f"{name}-{trainer.removeprefix(WORKER)}",
            "held_out": 0,
            "evals": (),
            "placement": PlacementConfig.model_validate(placement),
        }
        yield config.model_copy(update=changed)


def made(config: TrainConfig) -> str:
    """The URI of a run of this configuration, as `rlvf train` makes it in a process of its own. Raises ProbeError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.yaml")
        path.write_text(to_yaml(config), encoding="utf-8")
        words = [sys.executable, "-c", "from flows.cli import main; main()", "train", "--config", str(path), "--json"]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ProbeError(f"{config.run} failed: {(done.stderr.strip().splitlines() or ['no word'])[-1]}")
    return str(json.loads(done.stdout.splitlines()[-1])["run"])


def places_by_tags(placement: PlacementConfig, tags: Mapping[str, frozenset[str]], calls: Iterable[str]) -> Places:
    """The workers that a placement means, of each of the calls; of training the first of them."""
    found: dict[str, tuple[str, ...]] = {}
    for call in calls:
        needs = placement.tags(call)
        named = {need.removeprefix(WORKER) for need in needs if need.startswith(WORKER)}
        plain = {need for need in needs if not need.startswith(WORKER)}
        able = tuple(worker for worker in sorted(tags) if plain <= tags[worker] and (not named or worker in named))
        found[call] = able[:1] if call in TRAINED else able
    return found
