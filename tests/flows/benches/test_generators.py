"""`rlvf bench generators`, of few of them."""

import asyncio
import json
import re
import time
from typing import Any

import psutil
import pytest

from flows.benches.generators import WARM_UP, asleep, figure
from flows.benches.simulated import Kind, SimulatedClient
from flows.cli import main
from infra.cluster.placement import PlacementConfig
from infra.dispatch.dispatch import Dispatch
from infra.dispatch.schedule import Schedule
from tests.processes import until


def test_leases_of_generators_that_die_and_stop_all_come_back_once() -> None:
    said: list[str] = []
    client: Any
    kinds = [Kind("GENERATOR", 12, 0.02, 0.2)]  # with this seed one of them dies in its first call, and one stops
    with (
        SimulatedClient(kinds, 0, {}) as client,
        Dispatch(client, PlacementConfig(), said.append, attempts=9) as dispatch,
    ):
        back = [index for index, _ in dispatch.lease("generate", print, [()] * 40)]
        assert sorted(back) == list(range(40))
        assert client.deaths > 0 < client.stops
        until(lambda: dispatch.lost["generate"] >= client.deaths)


def test_the_scheduler_is_not_asked_who_is_there_for_each_lease() -> None:
    client: Any
    kinds = [Kind("GENERATOR", 2, 0.001, 0.0), Kind("VERIFIER", 2, 0.001, 0.0)]
    with SimulatedClient(kinds, 0, {}) as client, Dispatch(client, PlacementConfig()) as dispatch:
        asked: list[float] = []
        identity = client.scheduler.identity
        client.scheduler.identity = lambda **named: asked.append(time.monotonic()) or identity(**named)
        began = time.monotonic()
        for step in range(30):
            assert len(list(dispatch.lease("generate", print, [()] * 2, order=(step,)))) == 2
            assert len(dispatch.offers("verify", lately=60.0)) == 2
            assert len(list(dispatch.lease("verify", print, [()], order=(step,)))) == 1
        assert len(asked) <= 2 + (time.monotonic() - began) / 0.25
        assert len(dispatch.offers()) == 4  # asked anew, as anything but `lately` is
        assert asked[-1] > began + 0.01


@pytest.mark.parametrize(("generators", "leases", "most"), [(2, 40, 41), (500, 2000, 500)])
def test_it_is_looked_who_gets_what_once_a_lease_at_most_and_of_many_for_several(
    monkeypatch: pytest.MonkeyPatch, generators: int, leases: int, most: int
) -> None:
    client: Any
    looks: list[float] = []  # one a lease, and as time goes on
    hand_out = Schedule.hand_out
    monkeypatch.setattr(Schedule, "hand_out", lambda *args: looks.append(time.monotonic()) or hand_out(*args))
    kinds = [Kind("GENERATOR", generators, 0.01, 0.0)]
    with SimulatedClient(kinds, 0, {}) as client, Dispatch(client, PlacementConfig()) as dispatch:
        began = time.monotonic()
        assert len(list(dispatch.lease("generate", print, [()] * leases))) == leases
        assert leases / generators <= len(looks) <= most + 2 * (1 + (time.monotonic() - began) / 0.25)


class Congested(SimulatedClient):
    """The first result of one generator takes long to be fetched."""

    seconds = 2.0

    async def gather(self, future: Any, **named: Any) -> Any:
        if future.worker.name == "generator-1":
            seconds, self.seconds = self.seconds, 0.0
            await asyncio.sleep(seconds)
        return await super().gather(future, **named)


def test_a_worker_whose_result_is_long_on_the_way_has_answered_and_gets_more() -> None:
    said: list[str] = []
    client: Any
    with (
        Congested([Kind("GENERATOR", 2, 0.01, 0.0)], 0, {}) as client,
        Dispatch(client, PlacementConfig(), said.append, late_after=0.3) as dispatch,
    ):
        assert len(list(dispatch.lease("generate", print, [()] * 8))) == 8
        assert client.seconds == 0.0
        (line,) = said
        assert re.match(r"generator-1 has not come back with generate for \d s: generator-0 does the same", line)
        dispatch.timeline.take()
        assert len(list(dispatch.lease("generate", print, [()] * 8))) == 8
        assert {span.worker for span in dispatch.timeline.take()} == {"generator-0", "generator-1"}


def test_a_figure_is_of_the_steps_after_the_warm_up() -> None:
    at, computed, scheduled = [5.0, 10.0, 12.0, 14.0, 16.0], [3.0, 4.0, 4.1, 4.2, 4.3], [1.0, 2.0, 2.3, 2.6, 2.9]
    assert WARM_UP == 2
    found = figure(8, [9, 10, 11], at, computed, scheduled, [9e6, 5e6, 1e6, 2e6, 3e6])
    assert (found.leases, found.step_seconds, found.memory_mb) == (10, 2.0, 3.0)
    assert found.coordinator_seconds == pytest.approx(0.1)
    assert found.scheduler_seconds == pytest.approx(0.3)
    assert found.share == pytest.approx(0.2)
    assert found.lease_ms == pytest.approx(40)
    assert found.growth == pytest.approx(2)


def test_a_row_for_each_number(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.benches.apart.apart", lambda work, *words: work(*words))
    main("bench generators --generators 2,5 --seconds 0.2 --steps 3 --failures 0 --json".split())
    out, err = capsys.readouterr()
    rows = json.loads(out)["generators"]
    assert [(row["generators"], row["deaths"]) for row in rows] == [(2, 0), (5, 0)]
    assert all(row["leases"] >= row["generators"] for row in rows)  # cut to what each should have
    assert all(0 < row["share"] < 1 for row in rows)
    assert all(0.02 < row["step_seconds"] < 5 for row in rows)
    assert len(err.splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--generators 2,x", "--generators 2,x: 'x' is no number from 1 to 10000"),
        ("--generators 0", "--generators 0: '0' is no number"),
        ("--steps 0", "--steps 0: give 1 or more"),
        ("--seconds 0", "--seconds 0: give 0.01 to 3600"),
        ("--seconds nan", "--seconds nan: give 0.01 to 3600"),
        ("--failures 2", "--failures 2: give 0 to 0.5"),
        ("--seed -1", "--seed -1: give 0 or more"),
    ],
)
def test_a_mistake_is_one_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "generators", *words.split()])
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.slow
def test_a_row_of_processes_that_sleep() -> None:
    alone = {process.pid for process in psutil.Process().children(recursive=True)}
    found = asleep(2, 0.3, 3, 0)
    assert (found.generators, found.deaths) == (2, 0)
    assert found.leases >= 2
    assert 0.1 < found.step_seconds < 10
    assert 0 < found.coordinator_seconds < found.step_seconds
    assert found.scheduler_seconds > 0
    assert {process.pid for process in psutil.Process().children(recursive=True)} <= alone
