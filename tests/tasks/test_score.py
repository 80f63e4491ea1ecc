"""Scores of leases on a real cluster, beside their verification: what comes back is checked, and nothing hangs."""

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from distributed import Client

from infra.cluster.cluster import cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import PlacementConfig, PlacementError
from infra.dispatch.dispatch import Dispatch
from infra.storage.manifest import Torn
from infra.weights.version import PolicyVersion
from rl.config import PolicyConfig
from rl.graph import SCORES
from rl.records import Rollouts
from tasks.batch.collection import Collection
from tasks.batch.rollout_batch import RolloutBatch
from tasks.calls.scorer import Scorer
from tasks.calls.weights import Weights
from tasks.reference import ReferenceLost
from tasks.score import ReferenceScores, score
from tests.tasks.batches import ALL, config, problem_set, rollouts, verdicts

REFERENCE = SCORES["reference_logprobs"]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)  # the workers do not find the tests
    with cluster(
        ClusterConfig(generators=2, threads=1, device="cpu"), log_dir=tmp_path_factory.mktemp("logs")
    ) as client:
        yield client
    cloudpickle.unregister_pickle_by_value(here)


def reference(made: Callable[[Any], Any]) -> ReferenceScores:
    """A call that makes this of the rollouts, instead of scores under a policy."""

    class Made(Scorer):
        def score(self, _: Any, of: Any) -> Any:
            return made(of)

    return ReferenceScores(Made(Weights(PolicyConfig()), 1.0), lambda step: PolicyVersion(step, "v", ""))


def sure(of: Rollouts) -> Any:
    """-1 - its own number for each token that is there: the token ids of group i are i."""
    there = np.arange(of.tokens.shape[2]) < of.lengths[..., None]
    return np.where(there, -1 - of.tokens, 0).astype(np.float32)


def batch_of(dispatch: Dispatch, scores: ReferenceScores, leases: int, with_signal: list[bool] = ALL) -> RolloutBatch:
    """A batch of so many leases of two groups at first, generated and judged in this process, scored on the cluster."""
    asked = config(prompts=2 * leases, lease=2)
    collection = Collection(5, problem_set(), asked, [REFERENCE])

    def generate() -> None:
        for leases in collection.draws():
            for lease in leases:
                collection.arrive(lease, rollouts(lease, asked.samples))

    def verify() -> None:
        for lease, sampled in collection.arrivals():
            collection.judged(lease, sampled, verdicts(lease, with_signal, asked.samples))

    with ThreadPoolExecutor(3) as threads:
        under_way = [
            threads.submit(generate),
            threads.submit(verify),
            threads.submit(score.fn, dispatch, collection, scores),
        ]
        for each in under_way:
            each.result(60)
    return collection.collected()


@pytest.mark.slow
def test_each_group_of_a_batch_has_its_own_scores(client: Client) -> None:
    with_signal = [i % 3 != 1 for i in range(100)]
    with Dispatch(client, PlacementConfig()) as dispatch:
        found = batch_of(dispatch, reference(sure), 5, with_signal)
        spans = dispatch.timeline.take()
    scored = found.batch.reference_logprobs
    assert scored is not None
    assert scored.dtype == np.float32
    assert found.groups_generated > 10  # some were replaced
    assert len(found.batch) == 10
    assert np.array_equal(scored, sure(found.batch.rollouts))
    assert {span.call for span in spans} == {"reference"}
    assert {span.worker for span in spans} == {"generator-0", "generator-1"}
    assert found.figures()["leases/refused"] == 0


WRONG: dict[str, tuple[Callable[[Any], Any], str]] = {
    "shape": (lambda found: found[:, :1], r"scores are float32 \[2, 1, [23]\], not float32 \[2, 2, [23]\]"),
    "type": (lambda found: found.astype(np.float64), r"scores are float64 \[2, 2, [23]\], not float32"),
    "nan": (lambda found: np.where(found, np.float32("nan"), found), "a score is nan"),
    "sure": (lambda found: np.where(found, np.float32(0.5), found), "a log-prob is 0.5"),
    "past": (lambda found: np.full_like(found, -1), "a score is -1 where the policy has written no token"),
    "list": (lambda found: found.tolist(), "scores are list, not float32"),
}


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_scores_is_refused_counted_and_made_again_by_others(
    client: Client, tmp_path: Path, wrong: str
) -> None:
    spoil, why = WRONG[wrong]

    def made(of: Any) -> Any:
        from distributed import get_worker

        if get_worker().name == "generator-0":
            (tmp_path / str(time.monotonic_ns())).touch()
            return spoil(sure(of))
        while len(list(tmp_path.iterdir())) < 3:
            time.sleep(0.01)
        return sure(of)

    said: list[str] = []
    with Dispatch(client, PlacementConfig(), said.append) as dispatch:
        found = batch_of(dispatch, reference(made), 6)
        again = batch_of(dispatch, reference(sure), 2)
    assert found.batch.reference_logprobs is not None
    assert np.array_equal(found.batch.reference_logprobs, sure(found.batch.rollouts))
    assert found.figures()["leases/refused"] == 3
    assert again.figures()["leases/refused"] == 0
    pattern = f"generator-0 returned for reference what was not asked for: {why}"
    assert len([line for line in said if re.match(pattern, line)]) == 3
    assert "generator-0 gets no more leases in this run: 3 of its results were refused" in said


@pytest.mark.slow
def test_where_nobody_scores_the_error_says_so_and_generation_ends(client: Client) -> None:
    def fails(_: Any) -> Any:
        raise RuntimeError("no scores here")

    with Dispatch(client, PlacementConfig()) as dispatch, pytest.raises(RuntimeError, match="no scores here"):
        batch_of(dispatch, reference(fails), 3)
    placement = PlacementConfig(reference=("CUDA",))
    with (
        Dispatch(client, placement, patience=0.3) as dispatch,
        pytest.raises(PlacementError, match=r"placement.reference needs CUDA but no worker offers CUDA"),
    ):
        batch_of(dispatch, reference(sure), 3)


def test_a_generating_side_that_waits_for_verdicts_ends_with_the_scores(client: Client) -> None:
    collection = Collection(5, problem_set(), config(), [REFERENCE])
    ended = threading.Event()

    def generate() -> None:
        for leases in collection.draws():  # nobody judges
            for lease in leases:
                collection.arrive(lease, rollouts(lease, 2))
        ended.set()

    def damaged(_: Any) -> Any:
        raise Torn("v0 is damaged")

    threading.Thread(target=generate, daemon=True).start()
    with (
        Dispatch(client, PlacementConfig()) as dispatch,
        pytest.raises(ReferenceLost, match=r"^the reference policy is missing or damaged: v0 is damaged$"),
    ):
        score.fn(dispatch, collection, reference(damaged))
    assert ended.wait(30)


def test_the_scores_end_when_generating_fails(client: Client) -> None:
    collection = Collection(5, problem_set(), config(lease=2), [REFERENCE])

    def generate() -> None:
        for leases in collection.draws():
            collection.arrive(leases[0], rollouts(leases[0], 2))
            raise OSError("no generator left")

    with pytest.raises(OSError, match="no generator left"):
        generate()
    with Dispatch(client, PlacementConfig()) as dispatch:
        score.fn(dispatch, collection, reference(sure))


def test_only_what_a_scorer_reads_crosses_the_network(client: Client) -> None:
    def made(of: Any) -> Any:
        assert (of.problems, of.texts) == ((), ())
        assert of.logprobs.size == of.versions.size == 0
        return sure(of)

    with Dispatch(client, PlacementConfig()) as dispatch:
        batch_of(dispatch, reference(made), 2)
