"""Which probes are made of which workers."""

from pathlib import Path

import psutil
import pytest

from flows.config import TrainConfig
from flows.planner.applied import changed_config
from flows.planner.calls import able, places_by_tags
from flows.planner.probe import ProbeRefusedError, made, probes, tags_of_workers
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import PlacementConfig

TAGS = {
    "a": frozenset({"CPU", "GENERATOR"}),
    "b": frozenset({"CUDA", "TRAINER", "GENERATOR"}),
    "judge": frozenset({"CPU", "VERIFIER"}),
}


def test_each_worker_has_each_call_once_and_judges_judge() -> None:
    one, other = probes(TrainConfig(), TAGS, "probe-x")
    assert (one.run, other.run) == ("probe-x-a", "probe-x-b")
    assert one.steps == 5
    three = TAGS | {"c": frozenset({"CPU", "CRITIC"})}
    found = [probe.placement for probe in probes(TrainConfig(), three, "x")]
    for call in ("train", "train_critic", "generate", "greedy", "value", "reference", "reward"):
        assert sorted(placement.tags(call) for placement in found) == [("worker:a",), ("worker:b",), ("worker:c",)]
    for placement in found:
        assert placement.train != placement.train_critic  # side by side
        assert placement.verify == ("worker:judge",)
    (alone,) = probes(TrainConfig(), {name: TAGS[name] for name in ("a", "judge")}, "x")
    assert alone.placement.train == alone.placement.train_critic == alone.placement.generate == ("worker:a",)


def test_judges_judge_and_the_others_run_models() -> None:
    assert able("verify", TAGS) == ("judge",)
    assert able("train", TAGS) == able("value", TAGS) == ("a", "b")


def test_the_workers_of_a_local_cluster_are_those_that_would_be_started() -> None:
    tags = tags_of_workers(ClusterConfig(generators=2, device="cpu"))
    assert {name for name in tags if "GENERATOR" in tags[name]} == {"generator-0", "generator-1"}
    assert tags["trainer"] == {"CPU", "TRAINER"}
    assert "VERIFIER" in tags["verifier-0"]


def test_a_placement_means_these_workers() -> None:
    calls = ("generate", "verify", "train")
    found = places_by_tags(PlacementConfig(verify=("CPU",)), TAGS, calls)
    assert found == {"generate": ("a", "b"), "verify": ("a", "judge"), "train": ("b",)}
    named = PlacementConfig(generate=("CUDA", "worker:a", "worker:b"))
    assert places_by_tags(named, TAGS, ["generate"]) == {"generate": ("b",)}
    with pytest.raises(ValueError, match=r"placement\.value: no worker offers CRITIC; see rlvf status"):
        places_by_tags(PlacementConfig(value=("CRITIC",)), TAGS, ["value"])


def test_a_cluster_without_what_a_step_needs_is_refused() -> None:
    with pytest.raises(ValueError, match="no worker of the cluster offers VERIFIER"):
        list(probes(TrainConfig(), {"a": TAGS["a"]}, "x"))
    with pytest.raises(ValueError, match="no worker of the cluster offers GENERATOR or TRAINER or "):
        list(probes(TrainConfig(), {"judge": TAGS["judge"]}, "x"))


@pytest.mark.slow
def test_a_probe_that_is_refused_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLVF_HOME", str(tmp_path))
    config = changed_config(TrainConfig(), {"problems.path": "none.csv", "run": "probe-y"})
    heard: list[str] = []
    with pytest.raises(ProbeRefusedError, match=r"probe-y: .*none\.csv"):
        made(config, heard.append)
    assert "none.csv" in heard[-1]


@pytest.mark.slow
def test_a_probe_ends_with_what_asked_for_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLVF_HOME", str(tmp_path))

    def hear(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made(changed_config(TrainConfig(), {"run": "probe-z"}), hear)
    assert [child for child in psutil.Process().children() if "train" in child.cmdline()] == []
