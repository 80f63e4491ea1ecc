"""Probes: a few steps of training for each worker that could train, in which every call goes to one worker.

They are runs like any other, named `probe-…`, of the real work on the real links; the first call of each worker is left
out of what is measured (`flows.planner.measured`). From probe to probe each call goes to the next worker, so that each
worker has each call once, and a slow one has leases as large as a fast one. Updates of the policy and of a critic have
workers of their own, where there are two; verification goes to all that judge.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from flows.config import TrainConfig
from flows.options.reading import to_yaml
from flows.planner.calls import COMPUTING, JUDGING, able
from flows.planner.measured import FEWEST
from infra.cluster.cluster import workers
from infra.cluster.cluster_config import ClusterConfig, joined_scheduler
from infra.cluster.placement import WORKER, PlacementConfig
from infra.cluster.reach import parse_address
from infra.home import rlvf_home
from infra.services.scheduler import ask

STEPS = FEWEST + 2
ONE_EACH = ("train", "train_critic", "generate", "reference", "value", "reward", "greedy")  # on the next worker each
REFUSED = 2  # exit code of a command for the user's mistake


class ProbeError(RuntimeError):
    """A probe that did not come to its end, on these workers."""


class ProbeRefusedError(ValueError):
    """A probe that was refused for its settings, as all would be."""


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
    computing = [f"{WORKER}{worker}" for worker in able("train", tags)]
    judging = [f"{WORKER}{worker}" for worker in able("verify", tags)]
    if not computing or not judging:
        lacking = " or ".join(JUDGING if computing else COMPUTING)
        raise ValueError(f"no worker of the cluster offers {lacking}; see rlvf status")
    for at, trainer in enumerate(computing):
        placement = dict.fromkeys(config.placement.calls, computing) | {"verify": judging}
        placement |= {call: [computing[(at + n) % len(computing)]] for n, call in enumerate(ONE_EACH)}
        changed: dict[str, object] = {
            "steps": STEPS,
            "run": f"{name}-{trainer.removeprefix(WORKER)}",
            "held_out": 0,
            "evals": (),
            "placement": PlacementConfig.model_validate(placement),
        }
        yield config.model_copy(update=changed)


def made(config: TrainConfig, hear: Callable[[str], object] = lambda _: None) -> str:
    """The URI of a run of this configuration, as `rlvf train` makes it in a process of its own; `hear` gets each line
    that it says. Raises ProbeError and ProbeRefusedError."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "probe.yaml")
        path.write_text(to_yaml(config), encoding="utf-8")
        words = [sys.executable, "-c", "from flows.cli import main; main()", "train", "--config", str(path), "--json"]
        with Path(folder, "out").open("w+") as out:
            with subprocess.Popen(words, stdout=out, stderr=subprocess.PIPE, text=True, errors="replace") as process:
                try:
                    why = _told(process, hear)
                except BaseException:  # an interrupt, which the terminal alone sends to both
                    process.terminate()
                    process.wait()
                    raise
            out.seek(0)
            printed = out.read()
    if process.returncode:
        if process.returncode == REFUSED:
            raise ProbeRefusedError(f"{config.run}: {why}")
        raise ProbeError(f"{config.run} failed: {why}")
    return str(json.loads(printed.splitlines()[-1])["run"])


def _told(process: "subprocess.Popen[str]", hear: Callable[[str], object]) -> str:
    """The last line that it writes to stderr until its end, where it says what was wrong."""
    last = "no word"
    assert process.stderr is not None
    for line in process.stderr:
        if text := line.strip().removeprefix("rlvf: "):
            last = text
            hear(text)
    return last
