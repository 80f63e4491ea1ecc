"""A reference that is another model: stored with its run, stored anew where the copy is lost, and what it scores."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from infra.cluster.resident import drop, resident_now
from infra.runs.checkpoints import CheckpointConfig
from infra.storage.fence import Fence
from infra.storage.lock import acquire
from infra.weights.version import SyncConfig
from rl.config import PolicyConfig, SamplingConfig
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.optimizer_config import OptimizerConfig
from rl.lora_config import LoraConfig
from rl.model.policy import Policy, UnknownModelError, save_policy
from rl.model.tiny import build_model, build_tokenizer
from rl.records import Problem, Rollouts
from tasks.calls.generator import Generator
from tasks.calls.scorer import Scorer
from tasks.calls.trained import drop_publisher
from tasks.calls.trainer import Trainer
from tasks.calls.weights import Weights
from tasks.reference import CHECKED, OtherModel, OtherTokensError, ReferenceLost, RunVersion
from tests.tasks.test_critic_calls import batch_at
from tests.tasks.test_generator import published

CPU = PolicyConfig(device="cpu")
SCORER = Scorer(Weights(CPU), 0.7)
PROBLEMS = [Problem("add 1 and 2", "1 + 2", "here:1"), Problem("add 30 and 4", "30 + 4", "here:2")]


def made(folder: Path, seed: int = 7, words: tuple[str, ...] = (), dtype: torch.dtype = torch.float32) -> Path:
    """A model of its own weights, with these words beside those of the tiny policy."""
    tokenizer = build_tokenizer()
    tokenizer.add_tokens(list(words))
    assert tokenizer.eos_token_id is not None
    model = build_model(len(tokenizer), tokenizer.eos_token_id, 0, seed=seed)
    save_policy(Policy(model, tokenizer, torch.device("cpu"), dtype), folder, dtype)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def fence(run: Path) -> Iterator[Fence]:
    lock = acquire(str(run), print)
    yield lock.new_fence()
    lock.release()
    for name in (CHECKED, "reference", "sampler", "mirror"):
        drop(name)


def other(run: Path, source: Any, fence: Fence) -> OtherModel:
    return OtherModel("that one", source if isinstance(source, RunVersion) else str(source), str(run), 0.0, fence)


def sampled(tmp_path: Path) -> Rollouts:
    """By another policy than the reference."""
    generator = Generator(CPU, SamplingConfig(max_tokens=12), samples=3, seed=0)
    return generator.generate(published(tmp_path / "sampled", 0), 0, range(2), PROBLEMS)


def expected(folder: Path, rollouts: Rollouts, temperature: float) -> np.ndarray[Any, Any]:
    """[P, G, T] of a plain forward pass in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    found = np.zeros(rollouts.tokens.shape)
    for (p, g), length in np.ndenumerate(rollouts.lengths):
        ids = torch.tensor([[*rollouts.prompts[p].tolist(), *rollouts.tokens[p, g, :length].tolist()]])
        with torch.no_grad():
            logits = model(ids, use_cache=False).logits[0, -length - 1 : -1] / temperature
        found[p, g, :length] = logits.log_softmax(-1).gather(1, ids[0, -length:, None])[:, 0].numpy()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_are_those_of_the_model_that_is_named(
    run: Path, tmp_path: Path, fence: Fence, dtype: torch.dtype
) -> None:
    folder = made(tmp_path / "other", dtype=dtype)
    reference = other(run, folder, fence)
    reference.check("tiny")
    assert resident_now(CHECKED) is not None
    version, damaged = reference.stored()
    assert damaged == ""
    assert resident_now(CHECKED) is None
    assert load_file(run / "reference" / "v0" / "model.safetensors").keys() <= load_file(
        folder / "model.safetensors"
    ).keys() | {"lm_head.weight"}
    rollouts = sampled(tmp_path)
    found = SCORER.score(version, rollouts)
    assert np.abs(found - expected(folder, rollouts, 0.7)).max() < 2e-5
    assert np.abs(found - rollouts.logprobs).max() > 1e-2


@pytest.mark.slow
def test_a_version_of_another_run_is_scored_by(run: Path, tmp_path: Path, fence: Fence) -> None:
    theirs = tmp_path / "theirs"
    for step in (0, 4, 5):
        published(theirs, step)
    reference = other(run, RunVersion(str(theirs), 4, CPU, None), fence)
    reference.check("tiny")
    version, _ = reference.stored()
    rollouts = sampled(tmp_path)
    found = SCORER.score(version, rollouts)
    folder = theirs / "weights" / "v4"
    assert np.abs(found - expected(folder, rollouts, 0.7)).max() < 2e-5
    shutil.rmtree(theirs)
    drop("reference")
    assert SCORER.score(reference.stored()[0], rollouts).tobytes() == found.tobytes()


@pytest.mark.slow
def test_a_copy_is_made_once_and_again_where_it_is_lost(run: Path, tmp_path: Path, fence: Fence) -> None:
    folder = made(tmp_path / "other")
    reference = other(run, folder, fence)
    version, _ = reference.stored()
    stored = run / "reference" / "v0" / "model.safetensors"
    kept = stored.read_bytes()
    shutil.move(folder, tmp_path / "moved")
    assert reference.stored() == (version, "")  # the model is not needed any more
    stored.write_bytes(kept[:-1])
    with pytest.raises(ReferenceLost, match=r"model\.safetensors.*; nothing can take its place: .*'that one': "):
        reference.stored()
    with pytest.raises(ReferenceLost, match="is not there any more"):
        replace(reference, source=None).stored()
    made(folder, seed=8)
    with pytest.raises(ReferenceLost, match="nothing can take its place: that one is another model by now"):
        reference.stored()
    assert stored.read_bytes() == kept[:-1]  # and is left
    shutil.rmtree(folder)
    shutil.move(tmp_path / "moved", folder)
    again, damaged = reference.stored()
    assert again == version
    assert stored.read_bytes() == kept
    assert damaged.endswith("the reference was stored anew from that one")
    shutil.rmtree(run / "reference")
    assert reference.stored()[1].startswith("there is nothing whole at ")
    published(run / "reference-of-another", 0)
    shutil.rmtree(run / "reference" / "v0")
    shutil.move(run / "reference-of-another" / "weights" / "v0", run / "reference" / "v0")
    assert "is another model than was stored there" in reference.stored()[1]
    assert stored.read_bytes() == kept


def test_other_tokens_are_refused_with_the_reason(run: Path, tmp_path: Path, fence: Fence) -> None:
    more = made(tmp_path / "more", words=("zebra", "lion"))
    fewer = made(tmp_path / "fewer", words=("lion",))
    other(run, more, fence).check("tiny")  # which has all of its tokens
    for source, policy, said in (
        (made(tmp_path / "plain"), more, r"token \d+ is 'zebra' there, and the reference does not have it"),
        (fewer, more, r"token \d+ is 'zebra' there, and the reference does not have it"),
        (more, fewer, r"token \d+ is 'lion' there, and the reference has it as \d+; take a model of the same family"),
    ):
        with pytest.raises(OtherTokensError, match=said):
            other(run, source, fence).check(str(policy))


def test_fewer_rows_than_the_policy_samples_from_are_refused(run: Path, tmp_path: Path, fence: Fence) -> None:
    tokenizer = build_tokenizer()
    assert tokenizer.eos_token_id is not None
    padded = build_model(len(tokenizer) + 9, tokenizer.eos_token_id, 0, seed=0)
    save_policy(Policy(padded, tokenizer, torch.device("cpu"), torch.float32), tmp_path / "padded")
    other(run, tmp_path / "padded", fence).check("tiny")
    rows = len(tokenizer)
    said = (
        rf"'that one': has {rows} rows of tokens, and policy.model '.*padded' {rows + 9}, all of which may be sampled"
    )
    with pytest.raises(OtherTokensError, match=said):
        other(run, made(tmp_path / "other"), fence).check(str(tmp_path / "padded"))


def test_what_cannot_be_loaded_is_named_as_the_reference(run: Path, tmp_path: Path, fence: Fence) -> None:
    folder = made(tmp_path / "other")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnknownModelError, match=r"^algorithm\.kl\.reference 'that one': cannot be loaded: .*safetens"):
        other(run, folder, fence).check("tiny")


@pytest.mark.slow
def test_adapters_of_another_run_are_merged(run: Path, tmp_path: Path, fence: Fence, half_right: Path) -> None:
    theirs, adapted = str(tmp_path / "theirs"), PolicyConfig(device="cpu", lora=LoraConfig(rank=2))
    lock = acquire(theirs, print)
    trainer = Trainer(
        run_uri=theirs,
        source=str(half_right),
        policy=adapted,
        optimizer=OptimizerConfig(lr=1e-2),
        algorithm=AlgorithmSpec(),
        sampling=SamplingConfig(max_tokens=12),
        checkpoint=CheckpointConfig(),
        sync=SyncConfig(),
        window=1,
        steps=20,
        fence=lock.new_fence(),
    )
    trainer.begin()
    assert trainer.advance(0, batch_at(0), {}).applied
    trainer.publish(1)
    drop_publisher("learner")
    drop("learner")
    lock.release()
    version, _ = other(run, RunVersion(theirs, 1, adapted, None), fence).stored()
    rollouts = sampled(tmp_path)
    found = SCORER.score(version, rollouts)
    assert np.abs(found - expected(run / "reference" / "v0", rollouts, 0.7)).max() < 2e-5
    start, merged = (load_file(at / "model.safetensors") for at in (half_right, run / "reference" / "v0"))
    differ = {name for name in start if not torch.equal(start[name], merged[name])}
    assert differ
    assert all("_proj" in name for name in differ)
