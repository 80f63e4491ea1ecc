"""Calls that raise on a real cluster: one bad machine costs a few leases, what all of them raise ends the call.

The functions that run on the workers are nested ones, which are sent by value: a worker cannot import this file.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest
from distributed import Client, get_worker

from infra.cluster.cluster import cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.exclusions import Exclusions
from infra.cluster.placement import Offer, PlacementConfig
from infra.dispatch.dispatch import Dispatch
from infra.errors import worker_of

pytestmark = pytest.mark.slow

GENERATORS = [f"generator-{at}" for at in range(3)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    config = ClusterConfig(generators=3, threads=1, device="cpu")
    with cluster(config, log_dir=tmp_path_factory.mktemp("logs")) as client:
        yield client


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def dispatch(client: Client, said: list[str]) -> Iterator[Dispatch]:
    def say(line: str) -> None:
        if not line.startswith("nothing has come back"):  # which a slow machine may hear as well
            said.append(line)

    with Dispatch(client, PlacementConfig(), say, late_after=600) as dispatch:
        yield dispatch


def failing(marks: Path, workers: Collection[str], first: int = 0) -> Callable[[int], str]:
    """A call that raises on these workers; the others return when that has happened `first` times."""

    def call(item: int) -> str:
        name = str(get_worker().name)
        if name in workers:
            (marks / f"{item} {name} {time.monotonic_ns()}").touch()
            raise OSError(28, "no space\nleft")
        while len(list(marks.iterdir())) < first:
            time.sleep(0.01)
        return name

    return call


def failed(marks: Path) -> Counter[tuple[int, str]]:
    return Counter((int(mark.name.split()[0]), mark.name.split()[1]) for mark in marks.iterdir())


def test_one_bad_worker_of_three_costs_three_leases(dispatch: Dispatch, said: list[str], tmp_path: Path) -> None:
    call = failing(tmp_path, ["generator-0"], first=3)
    items = [(item,) for item in range(40)]
    done = dict(dispatch.lease("generate", call, items))
    assert sorted(done) == list(range(40))
    assert set(done.values()) == {"generator-1", "generator-2"}
    by_item = failed(tmp_path)
    assert sum(by_item.values()) == len(by_item) == 3  # none came to it a second time
    why = "generator-0: OSError: [Errno 28] no space left"
    assert said == [
        f"{why}; another worker does this lease of generate",
        f"{why}; it gets no more such leases in this run: 3 of them failed",
    ]
    # nor does it get one of another call that needs the same tags, by whoever goes on with this dispatch
    again = dispatch.renewed().lease("evaluate", failing(tmp_path, []), items)
    assert set(dict(again).values()) <= set(GENERATORS[1:])
    assert len(said) == 2
    assert dispatch.lost == Counter()


def test_what_all_of_them_raise_is_raised_with_its_worker(dispatch: Dispatch, said: list[str], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space") as caught:
        list(dispatch.lease("generate", failing(tmp_path, GENERATORS), [(7,)]))
    tried = failed(tmp_path)
    assert len(tried) == sum(tried.values()) == 2  # the third is not asked
    assert worker_of(caught.value) in {name for _, name in tried}
    assert len(said) == 1


def test_an_item_that_fails_everywhere_ends_its_batch_and_excludes_nobody(
    dispatch: Dispatch, said: list[str], tmp_path: Path
) -> None:
    def call(item: int) -> int:
        if item == 3:
            (tmp_path / f"{item} {get_worker().name}").touch()
            raise ValueError(f"item {item}")
        return item

    for _ in range(10):  # of three workers one is the first at least four times
        with pytest.raises(ValueError, match="item 3"):
            list(dispatch.lease("generate", call, [(item,) for item in range(10)]))
    assert sorted(dict(dispatch.lease("generate", call, [(item,) for item in range(3)]))) == [0, 1, 2]
    assert not any("no more" in line for line in said)


def test_the_only_worker_s_error_is_raised_at_once(dispatch: Dispatch, said: list[str], tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no space") as caught:
        list(dispatch.lease("verify", failing(tmp_path, ["verifier-0"]), [(item,) for item in range(5)]))
    assert failed(tmp_path) == {(0, "verifier-0"): 1}
    assert worker_of(caught.value) == "verifier-0"
    assert said == []


def test_what_the_caller_acts_upon_is_raised_at_once_and_held_against_nobody(
    dispatch: Dispatch, said: list[str], tmp_path: Path
) -> None:
    for row in range(4):
        with pytest.raises(OSError, match="no space"):
            list(dispatch.lease("generate", failing(tmp_path, GENERATORS), [(row,)], at_once=(OSError,)))
    assert len(failed(tmp_path)) == 4
    assert said == []


def test_an_update_is_not_tried_on_another_worker(client: Client, said: list[str], tmp_path: Path) -> None:
    trainers = PlacementConfig(train=("GENERATOR",))
    with Dispatch(client, trainers, said.append) as dispatch, pytest.raises(OSError, match="no space") as caught:
        dispatch.run("train", failing(tmp_path, GENERATORS), 1)
    ((_, name),) = failed(tmp_path)
    assert worker_of(caught.value) == name
    assert said == []


def test_why_nobody_is_left_names_each_with_its_own_reason() -> None:
    said: list[str] = []
    exclusions = Exclusions(PlacementConfig(), said.append)
    torn, full = (Offer(f"tcp://{name}", name, {"GENERATOR": 1}) for name in ("torn", "full"))
    for _ in range(3):
        exclusions.refuse("generate", torn, "it is str")
        exclusions.fail("generate", full, OSError("x" * 10_000))
    assert exclusions.excluded("generate", full)
    assert not exclusions.excluded("verify", full)
    assert exclusions.excluded("verify", torn)
    reasons = exclusions.reasons("generate", [torn, full])
    assert reasons.startswith(
        "because what they returned was refused: torn; because their leases failed: full: OSError"
    )
    assert len(reasons) < 500
    assert max(map(len, said)) < 500
