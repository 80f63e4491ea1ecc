"""Generating on a real cluster: what comes back is checked, and who returns nonsense is not asked for ever."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from infra.cluster.cluster import cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.dispatch import Dispatch
from infra.cluster.placement import PlacementConfig, PlacementError
from infra.weights.version import PolicyVersion
from rl.config import PolicyConfig, SamplingConfig
from rl.judging import Judgement
from rl.records import Problem, Rollouts
from rl.verifiers.spec import VerifierSpec
from tasks.calls.generator import Generator
from tasks.collection import BatchConfig, Collection
from tasks.generate import Admission, generate
from tasks.problem_set import ProblemSet
from tasks.rollout_batch import RolloutBatch


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with cluster(
        ClusterConfig(generators=2, threads=1, device="cpu"), log_dir=tmp_path_factory.mktemp("logs")
    ) as client:
        yield client


def nonsense_from(workers: Sequence[str], wrong: str, marks: Path) -> Generator:
    """A generator that samples nothing; on these workers it returns something else than it is asked for, three times
    before the others return anything."""

    class Nonsense(Generator):
        def generate(self, version: Any, _step: int, _groups: Sequence[int], problems: Sequence[Problem]) -> Any:
            from distributed import get_worker

            while get_worker().name not in workers and len(list(marks.glob("[0-9]*"))) < 3:
                time.sleep(0.01)
            shape = (len(problems), self.samples, 2)
            made = {
                "problems": problems,
                "prompts": tuple(np.array([1], np.int32) for _ in problems),
                "tokens": np.ones(shape, np.int32),
                "logprobs": np.full(shape, -0.5, np.float32),
                "versions": np.full(shape, version.step, np.int32),
                "lengths": np.full(shape[:2], 2, np.int32),
                "ended": np.ones(shape[:2], np.bool_),
                "texts": tuple(("x", "y") for _ in problems),
            }
            if get_worker().name in workers:
                (marks / str(time.monotonic_ns())).touch()
                if wrong == "type":
                    return "nonsense"
                tokens, versions = np.full(shape, 10**6, np.int32), made["versions"] - 9
                made |= {"tokens": tokens} if wrong == "token" else {"versions": versions}
            return Rollouts(**made)

    return Nonsense(PolicyConfig(), SamplingConfig(max_tokens=3), samples=2, seed=0)


def generated(dispatch: Dispatch, generator: Generator, step: int, leases: int) -> RolloutBatch:
    """A batch of as many leases, one problem each, every group of which varies."""
    problems = ProblemSet(
        name="numbered",
        draw=lambda step, count, skip: [Problem(f"{step}/{i}", str(i), "n") for i in range(skip, skip + count)],
        held_out=(),
        verifiers={"": VerifierSpec(name="arithmetic")},
    )
    collection = Collection(step, problems, BatchConfig(prompts=leases, samples=2, lease=1))

    def judge() -> None:
        for lease, rollouts in collection.arrivals():
            verdicts = Judgement(np.array([[0, 1]], np.float32), (("wrong", "right"),))
            collection.judged(lease, rollouts, verdicts)

    judging = threading.Thread(target=judge)
    judging.start()
    try:
        generate.fn(
            dispatch,
            collection,
            generator,
            lambda at_least: PolicyVersion(at_least + 1, "v", ""),
            Admission(2, vocabulary=50),
        )
    finally:
        collection.abandon()
        judging.join(60)
    return collection.collected()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("token", "token id 1000000 is not in the vocabulary, 0 to 49"),
        ("version", "a token was sampled with v-1, not with v7 to v9"),
        ("type", "it is str, and not rollouts"),
    ],
)
def test_nonsense_is_refused_counted_and_made_again_by_others(
    client: Client, tmp_path: Path, wrong: str, why: str
) -> None:
    generator = nonsense_from(["generator-0"], wrong, tmp_path)
    said: list[str] = []
    with Dispatch(client, PlacementConfig(), said.append) as dispatch:
        found = generated(dispatch, generator, step=9, leases=40)
        again = generated(dispatch, generator, step=9, leases=5)
        spans = Counter((span.worker, span.lost) for span in dispatch.timeline.take())
    assert [problem.target for problem in found.batch.rollouts.problems] == [str(i) for i in range(40)]
    assert found.batch.rollouts.tokens.max() == 1
    assert set(found.batch.rollouts.versions.ravel()) == {8}
    assert found.figures()["leases/refused"] == 3
    assert again.figures()["leases/refused"] == 0
    refused = f"generator-0 returned for generate what was not asked for: {why}; it is done again"
    excluded = "generator-0 gets no more leases in this run: 3 of its results were refused"
    said = [line for line in said if not line.startswith("nothing has come back")]  # on a slow machine
    assert said == [refused] * 3 + [excluded]
    assert spans[("generator-1", False)] == 45
    assert spans[("generator-0", False)] == 3
    assert dispatch.lost == Counter()


def test_where_everybody_returns_nonsense_the_run_ends_in_words(client: Client, tmp_path: Path) -> None:
    generator = nonsense_from(["generator-0", "generator-1"], "token", tmp_path)
    words = (
        r"no worker offers GENERATOR.*\(excluded, because what they returned was refused: generator-\d, generator-\d\)$"
    )
    with (
        Dispatch(client, PlacementConfig(), patience=0.3) as dispatch,
        pytest.raises(PlacementError, match=words),
    ):
        generated(dispatch, generator, step=9, leases=4)
