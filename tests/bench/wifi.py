"""How soon generators have new weights on Wi-Fi: differences against whole checkpoints.

A trainer, a store and two generators, each in a network namespace of its own; the trainer and the generators have a
link of 50 Mbit/s and 5 ms, the store, an S3 server, is on a cable. The first version goes whole: that is the way of a
checkpoint that is written and loaded again at every step. What follows are differences. Needs root and Linux.

python -m tests.bench.wifi [--layers 28] [--json]
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from flows.benches.codec import STEPS, drawn, stepped
from infra import disk
from infra.weights.difference import weights_digest
from infra.weights.mirror import Mirror
from infra.weights.publisher import Publisher
from infra.weights.version import PolicyVersion, SyncConfig
from rl.model.policy import copied_weights
from rl.model.rounding import all_in
from tests.links.link import WIFI
from tests.links.network import Machine, available, network

MODULE = "tests.bench.wifi"
GENERATORS = 2
DIFFERENCES = 3  # versions after the first
CHANGED = 0.009  # about the share of the weights that each changes
RUN, BUCKET, PORT = "s3://rlvf/run", "rlvf", 9000
S3 = {"AWS_ACCESS_KEY_ID": "me", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
START_SECONDS = 60.0


@dataclass(frozen=True)
class WifiFigure:
    """Seconds from "the update is done" to "every generator has its weights"."""

    parameters: int
    full_seconds: float  # of the whole weights
    full_bytes: int
    seconds: float  # of a difference (median)
    bytes: int
    changed: float

    @property
    def speedup(self) -> float:
        return self.full_seconds / self.seconds


def missing() -> str | None:
    """Why this cannot be measured here; None if it can."""
    for module in ("moto", "s3fs"):
        if find_spec(module) is None:
            return f"needs {module}: pip install 'rlvf[dev,s3]'"
    return available()


def on_wifi(layers: int, say: Callable[[str], None]) -> WifiFigure:
    """Publish the versions of a model of the shape of Qwen3-0.6B with so many layers, and have them fetched."""
    with tempfile.TemporaryDirectory(dir=disk.own_folder()) as folder, ExitStack() as stack:
        net = stack.enter_context(network(Path(folder)))
        store = net.add("store", 9)
        environment = {**S3, "AWS_ENDPOINT_URL_S3": f"http://{store.address}:{PORT}"}
        stack.enter_context(_s3(store, environment))
        trainer = stack.enter_context(_role(net.add("trainer", 5, WIFI), environment, "train", str(layers)))
        generators = [
            stack.enter_context(_role(net.add(f"generator{i}", 10 + i, WIFI), environment, "generate"))
            for i in range(GENERATORS)
        ]
        cells = _answer(trainer)["cells"]
        for generator in generators:
            _answer(generator)
        took, told = [], []
        for step in range(1 + DIFFERENCES):
            _ask(trainer, step)
            published = _answer(trainer)
            for generator in generators:
                _ask(generator, published["version"])
            swapped = [_answer(generator) for generator in generators]
            if any(each["digest"] != published["version"]["digest"] for each in swapped):
                raise RuntimeError("a generator has other weights than were published")
            took.append(max(each["at"] for each in swapped) - published["done_at"])
            told.append(published)
            say(f"v{step}: {published['bytes']:,} bytes, {took[-1]:.2f} s")
        return WifiFigure(
            cells,
            took[0],
            told[0]["bytes"],
            statistics.median(took[1:]),
            int(statistics.median(each["bytes"] for each in told[1:])),
            statistics.median(each["changed"] for each in told[1:]),
        )


@contextmanager
def _s3(store: Machine, environment: dict[str, str]) -> Iterator[None]:
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    store.start("moto_server", "-H", store.address, "-p", str(PORT), **quiet)
    make = f"import boto3; boto3.client('s3').create_bucket(Bucket={BUCKET!r})"
    deadline = time.monotonic() + START_SECONDS
    while store.start(sys.executable, "-c", make, env=environment, **quiet).wait():
        if time.monotonic() > deadline:
            raise RuntimeError(f"the S3 server did not start within {START_SECONDS:.0f} s")
    yield  # it ends with its machine


@contextmanager
def _role(machine: Machine, environment: dict[str, str], *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process of this module on a machine."""
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = machine.start(sys.executable, "-m", MODULE, *words, env=environment, **pipes)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _ask(process: subprocess.Popen[str], what: Any) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(what) + "\n")
    process.stdin.flush()


def _answer(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    if not (line := process.stdout.readline()):
        raise RuntimeError(f"{' '.join(map(str, process.args[-3:]))} ended early")  # type: ignore[index]
    return json.loads(line)


# -- what runs on the machines; a line in, a line out


def _train(layers: int) -> None:
    draws = torch.Generator().manual_seed(0)
    masters = drawn(layers, draws)
    with tempfile.TemporaryDirectory(dir=disk.own_folder()) as folder:
        publisher = Publisher(RUN, SyncConfig(), window=1, files=Path(folder))
        _say(cells=sum(master.numel() for master in masters.values()))
        for line in sys.stdin:
            done_at = time.monotonic()
            published = publisher.publish(json.loads(line), copied_weights(masters, all_in(torch.bfloat16)))
            version = {"step": published.version.step, "uri": published.version.uri, "digest": published.version.digest}
            _say(version=version, bytes=published.bytes, changed=published.changed, done_at=done_at)
            publisher.finish()
            masters = stepped(masters, STEPS[CHANGED], draws)


def _generate() -> None:
    mirror = Mirror(f"{RUN}/weights", patience=60.0)
    model: dict[str, torch.Tensor] = {}
    _say()
    for line in sys.stdin:
        with mirror.at(PolicyVersion(**json.loads(line))) as weights:
            for name, tensor in weights.items():
                if name in model:
                    model[name].copy_(tensor)
                else:
                    model[name] = tensor.clone()
        at = time.monotonic()
        _say(at=at, digest=weights_digest(model))


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_argument(
        "--layers", metavar="N", type=int, default=28, help="of the model's 28, to measure faster (28)"
    )
    command.add_argument("--json", action="store_true", help="print one JSON object")
    given = command.parse_args()
    if reason := missing():
        sys.exit(reason)
    wifi = on_wifi(given.layers, lambda text: print(text, file=sys.stderr, flush=True))
    if given.json:
        print(json.dumps({**asdict(wifi), "speedup": wifi.speedup}))
    else:
        print(
            f"on Wi-Fi two generators have a version of {wifi.parameters / 1e9:.2f}B parameters, of which "
            f"{wifi.changed:.2%} have changed, after {wifi.seconds:.1f} s; whole, after {wifi.full_seconds:.0f} s: "
            f"{wifi.speedup:.0f} times sooner"
        )


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["train"]:
        _train(int(sys.argv[2]))
    elif sys.argv[1:2] == ["generate"]:
        _generate()
    else:
        main()
