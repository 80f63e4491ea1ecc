"""Generating on a real cluster: what comes back is checked, and who returns nonsense is not asked for ever."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from infra.storage.manifest import StoreError, Torn
from infra.weights.version import PolicyVersion
from rl.audit import AuditConfig, AuditScores
from rl.config import PolicyConfig, SamplingConfig
from rl.graph import AUDIT, Call
from rl.judging import Judgement
from rl.records import Maker, Problem, Rollouts
from rl.verifiers.spec import VerifierSpec
from tasks.audit import Audits, audit
from tasks.batch.batch_config import BatchConfig
from tasks.batch.collection import Collection
from tasks.batch.rollout_batch import RolloutBatch
from tasks.calls.generator import Generator
from tasks.calls.scorer import Referee
from tasks.generate import Admission, generate
from tasks.mending import Mend, no_mend
from tasks.sets.problem_set import ProblemSet
from tests.processes import until

pytestmark = pytest.mark.slow


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
        def generate(self, version: Any, _step: int, _groups: Any, problems: Sequence[Problem], _so_far: Any) -> Any:
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
                "trained": np.ones(shape, np.bool_),
                "lengths": np.full(shape[:2], 2, np.int32),
                "ended": np.ones(shape[:2], np.bool_),
                "texts": tuple(("x", "y") for _ in problems),
            }
            if get_worker().name in workers:
                (marks / str(time.monotonic_ns())).touch()
                if wrong == "type":
                    return "nonsense"
                made |= {
                    "token": {"tokens": np.full(shape, 10**6, np.int32)},
                    "version": {"versions": made["versions"] - 9},
                    "logprob": {"logprobs": np.full(shape, np.nan, np.float32)},
                    "shape": {"versions": np.full((*shape[:2], 3), version.step, np.int32)},
                }[wrong]
            return Rollouts(**made)

    return Nonsense(PolicyConfig(), SamplingConfig(max_tokens=3), samples=2, seed=0)


def off_on(workers: Sequence[str]) -> tuple[Generator, Referee]:
    """A generator that samples nothing, and whose log-probs are off by one on these workers; and a referee of it."""

    def logprobs(shape: tuple[int, ...]) -> Any:
        from distributed import get_worker

        return np.full(shape, -1.5 if get_worker().name in workers else -0.5, np.float32)

    class Off(Generator):
        def generate(self, version: Any, _step: int, _groups: Any, problems: Sequence[Problem], _so_far: Any) -> Any:
            time.sleep(0.02)  # so that each worker gets some
            made = Rollouts.padded(problems, [[1]] * len(problems), [[3, 4]] * 2 * len(problems), version=version.step)
            return replace(made, logprobs=logprobs(made.tokens.shape), makers=(Maker(dtype="float32"),) * len(problems))

        def score(self, _version: Any, rollouts: Rollouts) -> AuditScores:
            return AuditScores(logprobs(rollouts.tokens.shape), "bfloat16")

    class Third(Referee):
        def score(self, _version: Any, rollouts: Rollouts) -> Any:
            return logprobs(rollouts.tokens.shape)

    generator = Off(PolicyConfig(), SamplingConfig(max_tokens=3), samples=2, seed=0)
    return generator, Third(generator.weights, 1.0)


def test_what_a_worker_made_that_audits_find_wrong_is_made_again_by_others(client: Client) -> None:
    generator, referee = off_on(["generator-0"])
    found: Callable[[int], PolicyVersion] = lambda step: PolicyVersion(step, f"v{step}", "")  # noqa: E731
    audits = Audits(AuditConfig(share=1), generator, referee, found, found)
    said: list[str] = []
    with Dispatch(client, PlacementConfig(), said.append) as dispatch:
        assert audits.possible(dispatch)
        collection = numbered(9, leases=12, calls=[AUDIT])
        collected(dispatch, collection, generator, audits)
        assert collection.reopen(dispatch.exclusions.is_distrusted)
        first = list(collection._again)
        found = collected(dispatch, collection, generator, audits)
        assert not collection.reopen(dispatch.exclusions.is_distrusted)
        spans = Counter((span.worker, span.call) for span in dispatch.timeline.take())
    assert {row["worker"] for row in found.rows()} == {"generator-1"}
    assert (found.batch.rollouts.logprobs == -0.5).all()
    assert [problem.target for problem in found.batch.rollouts.problems] == [str(i) for i in range(12)]
    figures = found.figures()
    assert figures["audit/redrawn"] == len(first) > 0
    assert figures["audit/disagreed"] >= 2
    assert set(figures) >= {"audit/dtypes/float32/bfloat16", "audit/workers/generator-0/generator-1"}
    assert [line for line in said if "gets no more leases" in line] == [
        "generator-0 gets no more leases in this run: audits have found it wrong; look at its memory and its versions "
        "of packages, then start it again"
    ]
    assert spans["generator-1", "audit"] > 0
    assert dispatch.lost == Counter()


def test_a_worker_that_is_gone_or_late_is_not_waited_for(client: Client) -> None:
    with Dispatch(client, PlacementConfig()) as dispatch:
        one, other = dispatch.offers("generate")
        gone = replace(one, address="tcp://127.0.0.1:9")
        began = time.monotonic()
        assert dispatch.ask("generate", time.sleep, 0, worker=gone, seconds=60, name="audit") is None
        assert dispatch.ask("generate", time.sleep, 5, worker=one, seconds=0.1, name="audit") is None
        assert time.monotonic() - began < 5
        with pytest.raises(ZeroDivisionError):
            dispatch.ask("generate", divmod, 1, 0, worker=other, seconds=60, name="audit")


def generated(dispatch: Dispatch, generator: Generator, step: int, leases: int) -> RolloutBatch:
    """A batch of as many leases, one problem each, every group of which varies."""
    return collected(dispatch, numbered(step, leases), generator)


def numbered(step: int, leases: int, calls: Sequence[Call] = ()) -> Collection:
    problems = ProblemSet(
        name="numbered",
        draw=lambda step, count, skip: [Problem(f"{step}/{i}", str(i), "n") for i in range(skip, skip + count)],
        held_out=(),
        verifiers={"": VerifierSpec(name="arithmetic")},
    )
    return Collection(step, problems, BatchConfig(prompts=leases, samples=2, lease=1), calls)


def collected(
    dispatch: Dispatch, collection: Collection, generator: Generator, audits: Audits | None = None
) -> RolloutBatch:
    def judge() -> None:
        for lease, rollouts in collection.arrivals():
            verdicts = Judgement(np.array([[0, 1]], np.float32), (("wrong", "right"),))
            collection.judged(lease, rollouts, verdicts)

    beside = [threading.Thread(target=judge)]
    if audits is not None:
        beside.append(threading.Thread(target=audit.fn, args=(dispatch, collection, audits)))
    for each in beside:
        each.start()
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
        for each in beside:
            each.join(60)
    return collection.collected()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("token", "token id 1000000 is not in the vocabulary, 0 to 49"),
        ("version", "a token was sampled with v-1, not with v7 to v8"),
        ("type", "it is str, and not rollouts"),
        ("logprob", "a log-prob is nan"),
        ("shape", "versions are int32 [1, 2, 3], not [1, 2, 2]"),
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


def held(marks: Path, error: Exception | None = None) -> Generator:
    """A generator that samples nothing, and its first lease not before there is a file `over`; of replacements it
    leaves a file, or raises the error."""

    class Held(Generator):
        def generate(self, version: Any, _step: int, groups: Any, problems: Any, _so_far: Any) -> Any:
            deadline = time.monotonic() + 60
            while groups.start == 0 and not (marks / "over").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            if groups.start > 1:
                (marks / str(groups.start)).touch()
                if error is not None:
                    raise error
            return Rollouts.padded(problems, [[1]], [[3, 4]] * 2, version=version.step)

    return Held(PolicyConfig(), SamplingConfig(max_tokens=3), samples=2, seed=0)


def replacing(dispatch: Dispatch, collection: Collection, generator: Generator, mend: Mend = no_mend) -> None:
    """Generate a batch of which the second group alone teaches nothing."""

    def judge() -> None:
        for lease, rollouts in collection.arrivals():
            rewards = np.array([[0, lease.groups.start != 1]], np.float32)
            collection.judged(lease, rollouts, Judgement(rewards, (("wrong", "judged"),)))

    judging = threading.Thread(target=judge, daemon=True)
    judging.start()
    newest: Callable[[int], PolicyVersion] = lambda step: PolicyVersion(step, "v", "")  # noqa: E731
    generate.fn(dispatch, collection, generator, newest, Admission(0, vocabulary=50), mend)
    judging.join(30)


def test_replacements_do_not_wait_for_the_slowest(client: Client, tmp_path: Path) -> None:
    collection = numbered(9, leases=2)
    with Dispatch(client, PlacementConfig(), late_after=600) as dispatch, ThreadPoolExecutor(1) as threads:
        generating = threads.submit(replacing, dispatch, collection, held(tmp_path))
        until((tmp_path / "3").exists, 30, about=lambda: str(generating))
        (tmp_path / "over").touch()
        generating.result(30)
    found = collection.collected()
    assert [problem.target for problem in found.batch.rollouts.problems] == ["0", "2"]
    assert found.groups_generated == 4


def test_the_fault_of_a_replacement_is_raised_while_others_are_made(client: Client, tmp_path: Path) -> None:
    def lost(error: StoreError) -> None:
        raise RuntimeError("nobody has it") from error

    with Dispatch(client, PlacementConfig(), late_after=600) as dispatch:
        began = time.monotonic()
        try:
            with pytest.raises(RuntimeError, match="nobody has it"):
                replacing(dispatch, numbered(9, leases=2), held(tmp_path, Torn("v9 is damaged")), lost)
            assert time.monotonic() - began < 30
            assert not (tmp_path / "3").exists()  # nothing further is begun
        finally:
            (tmp_path / "over").touch()
