"""Faults of `tests/bench/faults.py` that happen to folders, files and disks."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from flows.benches.faults import away
from flows.benches.stage import Stage
from tests.bench.accident import Accident
from tests.bench.faulty_storage import mounted

PASSING = 20.0  # seconds of what passes by itself
FAULT = "share.fault"  # the file that says what happens to the storage of runs
DISK = "96m"  # the small disk, which two checkpoints and two versions of the tiny policy fit on


def damage(file: Path) -> None:
    """A bit of it."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def damage_weights(accident: Accident) -> None:
    """A bit of each file of weights that is published."""
    files = [file for file in (accident.run / "weights").glob("v*/*") if file.suffix != ".json"]
    assert files
    for file in files:
        with suppress(FileNotFoundError):  # of a version that was removed just now
            damage(file)


def damage_checkpoint(accident: Accident) -> None:
    """A bit of the weights in the newest one."""
    whole = [int(each.name) for each in (accident.run / "state").iterdir() if each.name.isdigit()]
    damage(accident.run / "state" / str(max(whole)) / "model.safetensors")


def lose_storage(seconds: float, accident: Accident) -> None:
    """The folder of all runs is not there for so long, as a share that is not mounted."""
    accident.now()
    with away(accident.stage.place.home / "runs"):
        accident.over.wait(seconds)


@contextmanager
def share(stage: Stage) -> Iterator[None]:
    """All runs lie on storage to which something can happen."""
    home = stage.place.home
    with mounted(home / "share", home / "runs", home / FAULT, stage.machines):
        yield


def spoil_share(kind: str, accident: Accident) -> None:
    """Something does happen to it for a while."""
    file = accident.stage.place.home / FAULT
    accident.now()
    file.write_text(kind)
    accident.over.wait(PASSING)
    file.unlink()


@contextmanager
def small_disk(stage: Stage) -> Iterator[None]:
    """All runs lie on a file system of their own, a small one."""
    runs = stage.place.home / "runs"
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", runs], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", runs], check=True)


def fill_disk(accident: Accident) -> None:
    """The disk that all runs lie on has no space left for a while: not for a checkpoint, nor for a version."""
    rest = accident.stage.place.home / "runs" / ".rest"
    accident.now()
    try:
        with rest.open("wb", buffering=0) as file:
            while time.time() < accident.at + PASSING and not accident.over.wait(0.1):
                with suppress(OSError):  # it is full
                    while file.write(bytes(2**16)):
                        pass
    finally:
        rest.unlink()


def may_mount() -> str:
    return "" if os.geteuid() == 0 else "needs the right to mount a file system"
