"""Verifiers' machines that go wrong, on a real cluster: others judge what they cannot, or judged wrongly.

What stands for `tasks.judge.judge` here is nested, which is sent by value: a worker cannot import this file.
"""

import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from infra.cluster.cluster import cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import PlacementConfig, PlacementError
from infra.dispatch.dispatch import Dispatch
from infra.errors import worker_of
from rl.environments.spec import EnvironmentSpec, EnvironmentSpecError
from rl.judging import Judgement
from rl.records import Problem
from rl.verifiers.spec import VerifierError, VerifierSpec
from tasks import verify
from tasks.batch.collection import Collection
from tasks.batch.lease import Lease
from tasks.batch.rollout_batch import RolloutBatch
from tasks.turns import check_environment
from tests.tasks.batches import config, problem_set, rollouts

NONSENSE: dict[str, Callable[[Any], Any]] = {
    "inf": lambda rewards: np.full_like(rewards, np.inf),
    "huge": lambda rewards: np.full_like(rewards, 1e30),
    "columns": lambda rewards: np.zeros((len(rewards), 9), np.float32),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    config = ClusterConfig(generators=1, verifiers=2, threads=1, device="cpu")
    with cluster(config, log_dir=tmp_path_factory.mktemp("logs")) as client:
        yield client


def verified(dispatch: Dispatch, leases: int) -> RolloutBatch:
    """A batch of so many leases, of two problems with two completions each."""
    collection = Collection(3, problem_set(), config(prompts=2 * leases, samples=2, lease=2))

    def generate() -> None:
        for leases in collection.draws():
            for lease in leases:
                collection.arrive(lease, rollouts(lease, 2))

    generating = threading.Thread(target=generate)
    generating.start()
    try:
        verify.verify.fn(dispatch, collection)
    finally:
        generating.join(60)
    return collection.collected()


def nonsense(marks: Path, wrong: str, workers: tuple[str, ...]) -> Callable[..., Any]:
    """A judge that returns it on these workers; the others return when that has happened three times."""
    spoil = NONSENSE.get(wrong)

    def judge(_problems: Any, completions: Any, _verifiers: Any) -> Any:
        from dataclasses import replace

        from distributed import get_worker

        from rl.judging import Judgement
        from rl.records import Verdict

        right = Judgement.of([[Verdict(float(g), "judged") for g, _ in enumerate(row)] for row in completions])
        if get_worker().name not in workers:
            while len(list(marks.iterdir())) < 3:
                time.sleep(0.01)
            return right
        (marks / str(time.monotonic_ns())).touch()
        return {"rewards": 1} if spoil is None else replace(right, rewards=spoil(right.rewards))

    return judge


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("inf", "of rewards one is inf, beyond 1e+06"),
        ("huge", "of rewards one is 1e+30, beyond 1e+06"),
        ("columns", "rewards are float32 [1, 9], not [1, 2]"),
        ("type", "it is dict, and not a judgement"),
    ],
)
def test_nonsense_is_refused_counted_and_judged_by_others(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, why: str
) -> None:
    monkeypatch.setattr(verify, "judge", nonsense(tmp_path, wrong, ("verifier-0",)))
    said: list[str] = []
    with Dispatch(client, PlacementConfig(), said.append, late_after=600) as dispatch:
        found = verified(dispatch, leases=6)
    assert found.batch.rewards.tolist() == [[0, 1]] * 12
    assert found.figures()["leases/refused"] == 3
    said = [line for line in said if not line.startswith("nothing has come back")]  # on a slow machine
    assert said == [
        *[f"verifier-0 returned for verify what was not asked for: {why}; it is done again"] * 3,
        "verifier-0 gets no more leases in this run: 3 of its results were refused",
    ]


def test_where_all_return_nonsense_the_run_ends_in_words(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "judge", nonsense(tmp_path, "inf", ("verifier-0", "verifier-1")))
    with (
        Dispatch(client, PlacementConfig(), patience=0.3) as dispatch,
        pytest.raises(PlacementError, match=r"\(excluded, because what they returned was refused: verifier-"),
    ):
        verified(dispatch, leases=1)


REWARD = """
import os
MARK = os.environ["VERIFIER_NEEDS"]
def reward(problem, completion):
    return 1.0
"""


@pytest.fixture(scope="module")
def lacking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Three verifiers, of which only the last has a variable that the user's function needs."""
    config = ClusterConfig(generators=1, verifiers=3, threads=1, device="cpu")
    with cluster(config, log_dir=tmp_path_factory.mktemp("logs")) as client:
        yield client


def give(client: Client, name: str) -> None:
    """This worker alone has the variable."""

    def only_there(dask_worker: Any) -> None:
        import os

        os.environ.pop("VERIFIER_NEEDS", None)
        if dask_worker.name == name:
            os.environ["VERIFIER_NEEDS"] = "yes"

    client.run(only_there)


def needing(text: str = REWARD) -> VerifierSpec:
    return VerifierSpec(name="needs.py:reward", seconds=30.0, memory_mb=512, text=text, env=("VERIFIER_NEEDS",))


def judged(dispatch: Dispatch, spec: VerifierSpec, problems: int = 6) -> Judgement:
    lease = Lease(range(problems), tuple(Problem(f"p{i}", "", f"n:{i}", set="own") for i in range(problems)))
    return verify.judged(dispatch, rollouts(lease, 2), replace(problem_set(), verifiers={"own": spec}))


@pytest.mark.slow
def test_verifiers_that_cannot_work_are_named_and_left_out_before_a_run_begins(lacking: Client) -> None:
    give(lacking, "verifier-2")
    said: list[str] = []
    spec = needing()
    with Dispatch(lacking, PlacementConfig(), said.append, late_after=600) as dispatch:
        assert verify.check_verifiers(dispatch, {"own": spec})
        assert sorted(line.partition(":")[0] for line in said) == ["verifier-0", "verifier-1"]
        for line in said:
            assert re.search(
                r"verifier\.env: VERIFIER_NEEDS is not set on .*; it gets no such leases in this run$", line
            )
        for _ in range(3):
            assert judged(dispatch, spec).rewards.tolist() == [[1, 1]] * 6
        assert {span.worker for span in dispatch.timeline.take() if span.call == "verify"} == {"verifier-2"}


@pytest.mark.slow
def test_so_are_those_that_cannot_play_an_environment(lacking: Client) -> None:
    give(lacking, "verifier-1")
    text = "class Talk:\n    def reset(self, **_): ...\n    def step(self, text): ...\n"
    spec = EnvironmentSpec(name="talk.py:Talk", text=text, env=("VERIFIER_NEEDS",))
    said: list[str] = []
    with Dispatch(lacking, PlacementConfig(), said.append, late_after=600) as dispatch:
        assert check_environment(dispatch, spec, [Problem("p", "t", "here:1", played=True)]).step
        assert sorted(line.partition(":")[0] for line in said) == ["verifier-0", "verifier-2"]
        for line in said:
            assert re.search(r"VERIFIER_NEEDS is not set on .*; it gets no such leases in this run$", line)
        broken = spec.model_copy(update={"text": text.replace("**_): ...", "**_): return 1 / 0")})
        with pytest.raises(EnvironmentSpecError, match=r"talk\.py:2: ZeroDivisionError"):
            check_environment(dispatch, broken, [Problem("p", "t", "here:1", played=True)])


@pytest.mark.slow
def test_one_that_cannot_work_and_was_not_tried_is_no_fault_of_the_completions(client: Client) -> None:
    """As one that joins in mid-run: it raises, another judges, and after three leases it gets none any more."""
    said: list[str] = []
    give(client, "verifier-1")
    spec = needing(REWARD + "# of this test\n")
    with Dispatch(client, PlacementConfig(), said.append, late_after=600) as dispatch:
        for _ in range(50):
            found = judged(dispatch, spec)
            assert found.rewards.tolist() == [[1, 1]] * 6
            assert found.errors == ()
            if any("no more such leases" in line for line in said):
                break
    failures = [line for line in said if line.startswith("verifier-0: VerifierError: verifier.env: VERIFIER_NEEDS")]
    assert len(failures) == 2  # the first, and that it is left out
    assert failures[1].endswith("it gets no more such leases in this run: 3 of them failed")


@pytest.mark.slow
def test_where_none_can_work_a_run_is_refused(client: Client) -> None:
    text = "import no_such_module\ndef reward(p, c): return 1\n"
    spec = VerifierSpec(name="r.py:reward", seconds=5.0, memory_mb=512, text=text)
    said: list[str] = []
    with Dispatch(client, PlacementConfig(), said.append, late_after=600) as dispatch:
        with pytest.raises(VerifierError, match=r"^r\.py:1: ModuleNotFoundError"):
            verify.check_verifiers(dispatch, {"own": spec})
        with pytest.raises(VerifierError, match=r"^r\.py:1: ModuleNotFoundError") as caught:
            judged(dispatch, spec)
        assert worker_of(caught.value) in ("verifier-0", "verifier-1")


def test_one_that_stops_is_not_waited_for(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only as long as the patience after the first that has answered."""

    def warm(_verifiers: Any, _problems: Any) -> tuple[str, ...]:
        from distributed import get_worker

        while get_worker().name == "verifier-0" and not (tmp_path / "go").exists():
            time.sleep(0.01)
        return (str(get_worker().name),)

    monkeypatch.setattr(verify, "warm", warm)
    with Dispatch(client, PlacementConfig(), late_after=0.2) as dispatch:
        assert verify.check_verifiers(dispatch, {"own": needing()}) == ("verifier-1",)
    (tmp_path / "go").touch()
