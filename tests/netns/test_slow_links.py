"""Runs on slow, long, lossy and broken links: they come to their end, with the same weights everywhere."""

import json
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from flows.start.runs import local_folder
from infra.cluster.settings import dask_environment
from infra.runs.metric_log import read_metrics
from tests.links import network as networks
from tests.links.link import CABLE, VPN, WIFI
from tests.links.network import Machine, Network
from tests.processes import until

pytestmark = pytest.mark.slow
STEPS = 8
S3 = {
    "AWS_ENDPOINT_URL_S3": "http://192.168.1.9:9000",
    "AWS_ACCESS_KEY_ID": "me",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}
SCHEDULER = "tcp://192.168.1.5:8786"
RUN = "s3://rlvf/runs/slow"
OPTIONS = {
    "cluster.scheduler": SCHEDULER,
    "run": RUN,
    "steps": STEPS,
    "batch.prompts": 8,
    "batch.samples": 4,
    "batch.lease": 2,
    "held_out": 8,
    "sampling.max_tokens": 12,
    "sync.dtype": "bfloat16",
    "sync.anchor_every": 4,
    "tracking.system_metrics": "false",
    "tracking.report": "false",
}
# on the trainer's machine: what is published at the end, and what each generator has
COMPARE = """
import json
from distributed import Client
from infra.weights.version import newest_version

def digest(weights):
    from infra.weights.difference import weights_digest
    from infra.weights.mirror import Mirror
    from infra.cluster.resident import resident_now
    from infra.weights.version import newest_version
    mirror = resident_now("mirror", weights)
    if mirror is None and {cut}:  # it has just joined again
        mirror = Mirror(weights, patience=60)
    with mirror.at(newest_version(weights.rpartition("/")[0])) as found:
        return weights_digest(found)

version = newest_version({run!r})
with Client({scheduler!r}) as client:
    client.wait_for_workers(4, timeout=100)
    workers = {{worker["name"]: address for address, worker in client.scheduler_info(n_workers=-1)["workers"].items()}}
    ours = [workers[name] for name in ("generator1-generator", "generator2-generator")]
    print(json.dumps([version.step, version.digest, *client.run(digest, {run!r} + "/weights", workers=ours).values()]))
"""


def train(net: Network, half_right: Path, problems: Path) -> tuple[Machine, Any]:
    """The run's command, started once both generators are there; and the trainer's machine."""
    trainer, store = net.machines["trainer"], net.machines["store"]
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    store.start("moto_server", "-H", store.address, "-p", "9000", **quiet)
    make = "import boto3; boto3.client('s3').create_bucket(Bucket='rlvf')"
    until(lambda: store.start("python", "-c", make, env=S3, **quiet).wait() == 0, every=0.5)
    dask = ("python", "-m", "distributed.cli.dask_scheduler", "--host", trainer.address, "--no-dashboard", "--no-show")
    trainer.start(*dask, env=dask_environment(), **quiet)
    # a worker that finds no scheduler at its first look ends with a remedy
    there = f"from distributed import Client; Client('{SCHEDULER}', timeout=150).close()"
    trainer.run("python", "-c", there, seconds=180)
    rlvf = ("python", "-c", "from flows.cli import main; main()")
    for name, roles in (("generator1", "generator"), ("generator2", "generator"), ("trainer", "trainer,verifier")):
        words = ("worker", SCHEDULER, "--insecure", "--name", name, "--roles", roles, "--threads", "1")
        net.machines[name].start(*rlvf, *words, env=S3, **quiet)
    count = f"from distributed import Client; Client('{SCHEDULER}', timeout=60).wait_for_workers(4, timeout=150)"
    trainer.run("python", "-c", count, seconds=240)
    options = {**OPTIONS, "policy": half_right, "problems": problems}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    train = trainer.start(*rlvf, "train", "--json", *words, env=S3, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return trainer, train


def break_links(net: Network, names: tuple[str, ...], metrics: Path, stop: threading.Event) -> None:
    """Cut machines off for 20 s, one after the other, each once some more steps are done."""
    for name, after in zip(names, (2, 4, 5), strict=True):
        while not stop.is_set() and not any(line.step >= after for line in read_metrics(metrics)):
            time.sleep(0.1)
        net.cut(name)
        stop.wait(20)
        net.mend(name)


@pytest.mark.parametrize(
    ("trainer", "generators", "cut"),
    [
        pytest.param(CABLE, VPN, (), id="vpn"),
        pytest.param(WIFI, WIFI, ("store", "store", "generator1"), id="cut"),
    ],
)
@pytest.mark.timeout(900)  # two minutes where nothing else runs
def test_a_run_ends_with_the_same_weights_everywhere(
    tmp_path: Path,
    half_right: Path,
    sums: list[tuple[str, str]],
    trainer: Any,
    generators: Any,
    cut: tuple[str, ...],
) -> None:
    if reason := networks.available():
        pytest.skip(reason)
    pytest.importorskip("moto.server", reason="needs moto[server]: install the extra 'dev'")
    pytest.importorskip("s3fs", reason="needs s3fs: install the extra 's3'")
    problems = tmp_path / "sums.csv"
    rows = [f"{expression},{text}" for expression, text in sums]
    problems.write_text("\n".join(["python_expression,natural_language", *rows]) + "\n")
    with networks.network(tmp_path / "machines") as net:
        net.add("store", 9)
        net.add("trainer", 5, trainer)
        for number in (1, 2):
            net.add(f"generator{number}", 10 + number, generators)
        machine, run = train(net, half_right, problems)
        stop = threading.Event()
        metrics = local_folder(RUN, machine.home / ".rlvf") / "metrics.jsonl"
        breaking = threading.Thread(target=break_links, args=(net, cut, metrics, stop)) if cut else None
        if breaking is not None:
            breaking.start()
        try:
            out, err = run.communicate(timeout=600)
        finally:
            stop.set()
            if breaking is not None:
                breaking.join()
        assert run.returncode == 0, err
        assert json.loads(out)["steps"] == STEPS
        assert "keeping rollouts" not in err  # which a warning would name
        step, published, *fetched = json.loads(
            machine.run(
                "python", "-c", COMPARE.format(run=RUN, scheduler=SCHEDULER, cut=bool(cut)), seconds=150, env=S3
            )
        )
        assert step == STEPS
        assert fetched == [published] * 2
        ratios = [line.metrics["sync/ratio"] for line in read_metrics(metrics) if "sync/ratio" in line.metrics]
        assert len(ratios) == STEPS + 1
