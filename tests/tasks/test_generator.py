"""What a generator samples with is what it says."""

import gc
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infra.cluster.resident import drop, resident_now
from infra.storage import store
from infra.weights.difference import weights_digest
from infra.weights.mirror import Mirror
from infra.weights.version import PolicyVersion, published_version, weights_uri
from infra.weights.whole import describe, keep_whole
from rl.config import PolicyConfig, SamplingConfig
from rl.loading.policy import load_policy
from rl.model import memory
from rl.model.policy import Policy, read_weights, save_policy
from rl.model.tiny import build_model, build_tokenizer
from rl.records import Maker, Problem
from tasks.calls import generator
from tasks.calls.generator import Generator, store_model
from tasks.score import bare

SPEC = Generator(PolicyConfig(device="cpu"), SamplingConfig(max_tokens=12), samples=4, seed=0)


def published(run: Path, step: int, seed: int | None = None) -> PolicyVersion:
    """A version of its own weights, or those of this seed, stored whole."""
    tokenizer = build_tokenizer()
    assert tokenizer.eos_token_id is not None
    model = build_model(len(tokenizer), tokenizer.eos_token_id, 0, seed=step if seed is None else seed)
    folder = run / "made"
    folder.mkdir(parents=True)
    save_policy(Policy(model, tokenizer, torch.device("cpu"), torch.float32), folder)
    weights = read_weights(folder)
    version = PolicyVersion(step, weights_uri(str(run), step), weights_digest(weights))
    manifest = describe(weights, version, None, 1.0, {})
    store.write_folder(version.uri, folder, meta=manifest.model_dump(mode="json"), move=True)
    return version


@pytest.mark.parametrize("own", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("arithmetic", ["float32", "bfloat16"])
def test_a_model_is_stored_in_its_own_type_whatever_computes(own: torch.dtype, arithmetic: str, tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), 1, 0, seed=0)
    policy = Policy(model, tokenizer, torch.device("cpu"), torch.float32)
    save_policy(policy, tmp_path / "source", own)
    source = read_weights(tmp_path / "source")
    config = PolicyConfig.model_validate({"device": "cpu", "dtype": arithmetic})
    version = store_model(str(tmp_path / "source"), config, str(tmp_path / "models"))
    stored = read_weights(Path(version.uri))
    assert stored.keys() == source.keys()
    for name, value in source.items():
        assert stored[name].dtype == own
        assert torch.equal(stored[name], value)


def test_a_call_with_another_version_waits_for_the_one_that_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = [published(tmp_path / "run", step) for step in (0, 1)]
    problem = Problem("add 1 and 2", "1 + 2", "here:1")
    alone = [SPEC.generate(version, 0, [0], [problem]) for version in versions]
    assert not np.array_equal(alone[0].tokens, alone[1].tokens)
    sampling, go_on = threading.Event(), threading.Event()

    def look() -> Callable[[], None]:
        """Of the first call: it stands between two tokens until the second one samples, or waits for its turn."""
        if sampling.is_set():
            return go_on.set

        def check() -> None:
            sampling.set()
            assert go_on.wait(60)

        return check

    monkeypatch.setattr(generator, "cancellation_check", look)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(SPEC.generate, versions[0], 0, [0], [problem])
        assert sampling.wait(60)
        second = pool.submit(SPEC.generate, versions[1], 0, [0], [problem])
        found = [first.result(60), second.result(60)]
    for each, asked, undisturbed in zip(found, versions, alone, strict=True):
        inside = np.arange(each.tokens.shape[2]) < each.lengths[:, :, None]
        assert (each.versions[inside] == asked.step).all()
        assert np.array_equal(each.tokens, undisturbed.tokens)
        np.testing.assert_allclose(each.logprobs, undisturbed.logprobs, atol=1e-4)
    for name in ("sampler", "mirror"):
        drop(name)


@pytest.mark.slow
def test_an_evaluation_of_a_run_that_trains_samples_with_its_model_whose_versions_go_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newest, older = (published(tmp_path / "run", step) for step in (1, 0))
    loaded: list[str] = []

    def loading(path: str, *given: Any, **named: Any) -> Policy:
        shutil.rmtree(newest.uri)  # as the trainer does, at any time
        loaded.append(path)
        return load_policy(path, *given, **named)

    monkeypatch.setattr("rl.loading.policy.load_policy", loading)
    problem = Problem("add 1 and 2", "1 + 2", "here:1")
    evaluation = replace(SPEC, policy=SPEC.policy.model_copy(update={"model": "run"}))  # as it is named there
    for spec, version in ((SPEC, newest), (evaluation, older)):
        rollouts = spec.generate(version, 0, [0], [problem])
        assert rollouts.versions.max() == version.step
    assert len(loaded) == 1
    for name in ("sampler", "mirror"):
        drop(name)
    gc.collect()
    assert not Path(loaded[0]).exists()


@pytest.mark.parametrize("processes", ["1", "2"])
def test_after_a_lease_memory_is_given_back_to_those_who_compute_on_the_device(
    processes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[torch.device] = []
    monkeypatch.setenv(memory.DEVICE_PROCESSES, processes)
    monkeypatch.setattr(memory, "release", released.append)
    SPEC.generate(published(tmp_path / "run", 0), 0, [0], [Problem("add 1 and 2", "1 + 2", "here:1")])
    assert released == [torch.device("cpu")] * (processes == "2")
    for name in ("sampler", "mirror"):
        drop(name)


@pytest.mark.slow
def test_other_files_beside_the_same_weights_are_another_policy(tmp_path: Path) -> None:
    tokenizer = build_tokenizer()
    problem = Problem("add 1 and 2", "1 + 2", "here:1")

    def stored() -> PolicyVersion:
        folder = tmp_path / "made"
        folder.mkdir()
        save_policy(
            Policy(build_model(len(tokenizer), 1, 0, seed=0), tokenizer, torch.device("cpu"), torch.float32), folder
        )
        return keep_whole(weights_uri(str(tmp_path / "model"), 0), folder)

    def prompt(version: PolicyVersion) -> str:
        (tokens,) = SPEC.generate(version, 0, [0], [problem]).prompts
        return tokenizer.decode(tokens)

    bare = stored()
    assert prompt(bare) == "add 1 and 2\n"
    tokenizer.chat_template = "{{ messages[0]['content'] }} is"
    templated = stored()
    assert (templated, templated.uri) == (bare, bare.uri)
    assert prompt(templated) == "add 1 and 2 is"
    assert prompt(published_version(templated.uri)) == "add 1 and 2 is"
    drop("sampler")  # as for a call with another dtype
    assert prompt(templated) == "add 1 and 2 is"


def test_what_was_fetched_is_enough_where_the_run_has_removed_it(tmp_path: Path) -> None:
    version = published(tmp_path / "run", 0)
    problem = Problem("add 1 and 2", "1 + 2", "here:1")
    before = SPEC.generate(version, 0, [0], [problem])
    shutil.rmtree(version.uri)
    drop("sampler")
    assert np.array_equal(SPEC.generate(version, 0, [0], [problem]).tokens, before.tokens)


@pytest.mark.slow
def test_another_generator_s_log_probs_are_its_own_at_the_same_version_and_it_never_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = [published(tmp_path / "run", step) for step in range(3)]
    problems = [Problem("add 1 and 2", "1 + 2", "here:1"), Problem("add 3 and 4", "3 + 4", "here:2")]

    def drop_all() -> None:  # another worker
        for name in ("sampler", "mirror"):
            drop(name)

    made = SPEC.generate(versions[1], 0, range(2), problems)
    assert made.makers == (Maker(dtype="float32"),) * 2
    kept = resident_now("sampler")
    own = SPEC.score(versions[1], bare(made))
    assert own is not None
    assert own.dtype == "float32"
    assert np.abs(own.logprobs - made.logprobs).max() < 1e-5
    assert SPEC.score(versions[0], bare(made)) is None
    assert resident_now("sampler") is kept
    assert SPEC.generate(versions[1], 0, range(2), problems).logprobs.tobytes() == made.logprobs.tobytes()

    read: list[int] = []
    take = Mirror._take
    monkeypatch.setattr(
        Mirror, "_take", lambda self, edge, check: read.append(edge.makes.step) or take(self, edge, check)
    )
    drop_all()
    first = SPEC.score(versions[1], bare(made))  # before it has sampled anything
    assert first is not None
    assert first.logprobs.tobytes() == own.logprobs.tobytes()
    mirror = SPEC.weights.mirror(versions[2])
    with mirror.at(versions[2]):  # as a prefetch leaves it
        assert mirror.step() == 2
    assert SPEC.score(versions[1], bare(made)) is not None  # what it samples from is still this one
    ahead = SPEC.generate(versions[2], 0, range(2), problems)
    assert SPEC.score(versions[1], bare(made)) is None
    assert SPEC.score(versions[2], bare(ahead)) is not None
    drop("sampler")
    assert SPEC.score(versions[1], bare(made)) is None  # the weights are those of a later one
    assert read == [1, 2]  # each once
    drop_all()
