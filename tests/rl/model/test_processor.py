"""What a processor is measured to do, and that it is measured once."""

import fcntl
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest
import torch

from rl.model import processor


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file, and nothing measured yet in this process."""
    monkeypatch.setenv(processor.MEASURED, str(tmp_path / "cache" / "processor.json"))
    processor.fast_at_bfloat16.cache_clear()
    (tmp_path / "cache").mkdir()
    yield tmp_path / "cache" / "processor.json"
    processor.fast_at_bfloat16.cache_clear()


def test_it_is_measured_once_a_machine(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.write_text(json.dumps({"another machine": 0.5}))
    found = processor.fast_at_bfloat16()
    measured = json.loads(kept.read_text())
    assert measured.pop("another machine") == 0.5
    (speed,) = measured.values()
    assert found == (speed >= processor.FASTER)
    processor.fast_at_bfloat16.cache_clear()  # as in the next process
    monkeypatch.setattr(processor, "_speed", None)
    assert processor.fast_at_bfloat16() == found


@pytest.mark.parametrize(("narrow", "pays"), [(4.0, True), (1.0, False)])
@pytest.mark.parametrize("damaged", ["", "no json", "[1]", '{"machine": "fast"}', '{"machine": NaN}', "[" * 100_000])
def test_what_cannot_be_read_or_kept_is_measured_again(
    damaged: str, narrow: float, pays: bool, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.write_text(damaged)
    monkeypatch.setattr(processor, "_speed", lambda dtype: narrow if dtype == torch.bfloat16 else 1.0)
    assert processor.fast_at_bfloat16() == pays
    assert list(json.loads(kept.read_text()).values()) == [narrow]
    kept.unlink()
    kept.parent.rmdir()
    kept.parent.touch()
    processor.fast_at_bfloat16.cache_clear()
    assert processor.fast_at_bfloat16() == pays


def test_what_another_process_measures_meanwhile_is_waited_for(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = f"{processor.processor()}, torch {torch.__version__}"
    monkeypatch.setattr(processor, "_speed", lambda _: pytest.fail("measured twice"))
    with ThreadPoolExecutor(1) as pool, kept.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        asked = pool.submit(processor.fast_at_bfloat16)
        wait([asked], 0.2)
        kept.write_text(json.dumps({machine: 4.0}))
        fcntl.flock(file, fcntl.LOCK_UN)
        assert asked.result(10)


def test_a_pipe_in_its_place_is_not_waited_for(kept: Path) -> None:
    os.mkfifo(kept)
    assert isinstance(processor.fast_at_bfloat16(), bool)


@pytest.mark.parametrize(
    "differs", ["Features\t: fp asimd sve", "CPU part\t: 0xd4f", "flags\t\t: fma avx512f", "model name\t: other"]
)
def test_processors_that_can_other_things_are_told_apart(differs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of x86 and of ARM: what is compiled for one may be no program for another."""
    said = "processor\t: 0\nFeatures\t: fp asimd\nCPU part\t: 0xd0c\nflags\t\t: fma\nmodel name\t: one\n"
    found = []
    for text in (said, f"{said}{differs}\n"):
        monkeypatch.setattr(Path, "read_text", lambda *_, text=text: text)
        found.append(processor.processor())
    assert found[0] != found[1]
