"""What models are planned to take is what they take."""

from pathlib import Path

import pytest
import torch

from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.planner.calls import graph_named
from flows.planner.memory import memory, sizes
from infra.runs.record import Record, read_record
from rl.learning.learner import Learner
from rl.learning.optimizer_config import OptimizerConfig
from rl.model.policy import Policy
from rl.model.tiny import build_model, build_tokenizer
from tests.flows.planner.kept_run import keep_run, keep_version

PPO = graph_named("ppo", kl=True, calls=["reward"])


def configured(**options: str) -> TrainConfig:
    overrides = {name.replace("__", "."): value for name, value in options.items()}
    return read_config(TrainConfig, file=None, overrides=overrides)


def record_of(run: Path) -> Record:
    return read_record(str(run), run)


@pytest.mark.parametrize("noted", [True, False])
@pytest.mark.parametrize(("published", "width"), [("float32", 4), ("bfloat16", 2), ("int8", 1)])
def test_a_learner_takes_what_it_is_planned_with_whatever_is_published(
    tmp_path: Path, published: str, width: int, noted: bool
) -> None:
    words = build_tokenizer()
    model = build_model(len(words), 1, 0, seed=0)
    count = model.num_parameters()
    learner = Learner(Policy(model, words, torch.device("cpu"), torch.float32), OptimizerConfig(lr=1e-3))
    run = keep_run(tmp_path / "run", **({"parameters": (count, count)} if noted else {}))
    keep_version(run, published, width * count)
    held = sizes(PPO, record_of(run), TrainConfig(), str(run))
    of_buffers = sum(buffer.nbytes for buffer in model.buffers())
    assert held["actor in training"] == held["critic in training"] == learner.memory.nbytes - of_buffers
    of_generator = sum(p.nbytes for p in model.to(torch.float32 if width == 4 else torch.bfloat16).parameters())
    assert held["actor"] == held["critic"] == held["reference"] == of_generator


def test_the_optimizer_and_the_arithmetic_say_what_a_parameter_takes(tmp_path: Path) -> None:
    run = keep_run(tmp_path / "run", parameters=(1_000_000, 1_000_000))
    keep_version(run, "int8", 1_000_000)

    def held(**options: str) -> dict[str, float]:
        return sizes(PPO, record_of(run), configured(**options), str(run))

    assert held(optimizer__state="8bit")["actor in training"] == 10e6
    assert held(optimizer__name="muon")["critic in training"] == 12e6
    assert held(policy__dtype="float32")["actor"] == 4e6


def test_memory_is_what_the_workers_announced_and_the_weights_are(tmp_path: Path) -> None:
    run = keep_run(tmp_path / "run", memory_gb={"fast": 8.0})
    assert memory(record_of(run)) == {"fast": 8e9}
    assert sizes(PPO, record_of(run), TrainConfig(), str(run)) == {}  # nothing is published yet
    keep_version(run, "bfloat16", 1_000_000_000)
    known = {"actor": 1e9, "critic": 1e9, "actor in training": 8e9, "critic in training": 8e9}
    assert sizes(PPO, record_of(run), TrainConfig(), str(run)) == known | {"reference": 1e9}
    other = configured(algorithm__kl="0.1", algorithm__kl__reference="org/other")
    assert sizes(PPO, record_of(run), other, str(run)) == known  # of any size, as the reward model's
    held = sizes(graph_named("grpo", kl=False), record_of(run), other, str(run))
    assert set(held) == {"actor", "actor in training"}


def test_adapters_are_counted_with_the_model_that_they_stand_on(tmp_path: Path) -> None:
    """What is published of each version is the adapters: 1 GB of 16 bits, beside 30 GB that every role has."""
    run = keep_run(tmp_path / "run", parameters=(500_000_000, 15_500_000_000))
    keep_version(run, "bfloat16", 1_000_000_000)
    expected = {
        "actor": 31e9,
        "actor in training": 38e9,
        "critic": 30e9,  # of all parameters
        "critic in training": 240e9,
        "reference": 31e9,
    }
    assert sizes(PPO, record_of(run), configured(policy__lora="64"), str(run)) == expected
    narrow = configured(policy__lora="64", policy__lora__base="bfloat16", policy__dtype="float32")
    wide = {name: 2 * size for name, size in expected.items() if "training" not in name}
    assert sizes(PPO, record_of(run), narrow, str(run)) == expected | wide
    told = keep_run(tmp_path / "told", parameters=(500_000_000, 15_500_000_000), dtype="float32")
    keep_version(told, "bfloat16", 1_000_000_000)
    narrow = configured(policy__lora="64", policy__lora__base="bfloat16")  # the type that is published by itself
    assert sizes(PPO, record_of(told), narrow, str(told)) == expected | wide
    older = keep_run(tmp_path / "older")  # has not told
    keep_version(older, "bfloat16", 1_000_000_000)
    assert sizes(PPO, record_of(older), configured(policy__lora="64"), str(older)) == {}
