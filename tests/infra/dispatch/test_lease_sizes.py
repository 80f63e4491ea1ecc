"""Items that are cut for real workers, one of them slow, one of them killed.

The functions that run on the workers are nested ones, which are sent by value: a worker cannot import this file.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from distributed import get_worker

from infra.cluster.placement import Offer
from infra.dispatch.dispatch import Dispatch
from infra.dispatch.shares import Sizes
from infra.dispatch.speeds import Made


class Ranges(Sequence[tuple[range]]):
    """Numbers that are cut into what suits each worker."""

    def __init__(self, count: int, first: int) -> None:
        self.ranges = [range(count)]
        self.first = first
        self.done: Counter[str] = Counter()  # numbers, by worker

    def __len__(self) -> int:
        return len(self.ranges)

    def __getitem__(self, index: Any) -> Any:
        return (self.ranges[index],)

    def sizes(self, _: int) -> Sizes:
        return Sizes(self.first, 30.0)

    def units(self, index: int) -> int:
        return len(self.ranges[index])

    def cut(self, index: int, units: int) -> int:
        self.ranges.append(self.ranges[index][units:])
        self.ranges[index] = self.ranges[index][:units]
        return len(self.ranges) - 1

    def made(self, _: int, result: list[int]) -> Made:
        return Made(1.0, len(result))

    def take(self, index: int, result: list[int], worker: Offer) -> bool:
        assert result == list(self.ranges[index])
        self.done[worker.name] += len(result)
        return True


@pytest.mark.slow
def test_a_slow_worker_gets_smaller_items_and_all_end_together(dispatch: Dispatch) -> None:
    def call(numbers: range) -> list[int]:
        time.sleep((0.03 if get_worker().name == "generator-1" else 0.01) * len(numbers))
        return list(numbers)

    def lease(count: int, order: int) -> Ranges:
        numbers = Ranges(count, first=4)
        found = dispatch.lease("generate", call, numbers, order=(order,), done=numbers.take, cuts=numbers)
        results = dict(found)
        assert sorted(number for made in results.values() for number in made) == list(range(count))
        assert sorted(results) == list(range(len(numbers)))
        return numbers

    first = lease(20, 0)  # until then nothing is known of them
    assert [len(each) for each in first.ranges[:2]] == [4, 4]
    dispatch.timeline.take()
    numbers = lease(120, 1)
    assert numbers.done["generator-1"] / 120 == pytest.approx(0.25, rel=0.3)  # of the speed, beside other programs
    assert len(numbers) <= 8
    spans = dispatch.timeline.take()
    assert sum(span.tokens for span in spans) == 120
    ends = {name: max(span.end for span in spans if span.worker == name) for name in numbers.done}
    assert abs(ends["generator-0"] - ends["generator-1"]) < 0.4  # seconds; all of it takes 0.9


@pytest.mark.slow
def test_what_a_killed_worker_had_is_done_whole_by_another(dispatch: Dispatch, tmp_path: Path) -> None:
    def call(numbers: range) -> list[int]:
        time.sleep(0.05)
        if 0 in numbers and not (tmp_path / "died").exists():
            (tmp_path / "died").write_text(str(len(numbers)))
            os.kill(os.getpid(), signal.SIGKILL)
        return list(numbers)

    numbers = Ranges(12, first=4)
    found = dict(dispatch.lease("generate", call, numbers, done=numbers.take, cuts=numbers))
    assert sorted(number for made in found.values() for number in made) == list(range(12))
    assert (tmp_path / "died").read_text() == str(len(found[0])) == "4"
    assert dispatch.lost == {"generate": 1}
