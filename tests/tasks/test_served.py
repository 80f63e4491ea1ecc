"""A generator whose server samples in the engine's place: one of this process, and a real vLLM where there is one."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from infra.cluster.resident import drop
from infra.storage import store
from infra.weights.difference import weights_digest
from infra.weights.version import PolicyVersion, weights_uri
from infra.weights.whole import describe
from rl.config import PolicyConfig, SamplingConfig
from rl.model.policy import Policy, read_weights, save_policy
from rl.model.tiny import build_tokenizer
from rl.records import Problem, Rollouts
from rl.sampling.server import ServerError
from tasks.calls.generator import Generator, check_server
from tests.conftest import free_port
from tests.real_vllm import serving
from tests.rl.sampling.vllm_like import VllmLike, vllm_like

pytestmark = pytest.mark.slow

VLLM = os.environ.get("VLLM_PYTHON")  # of an environment with vLLM: tests/bench/vllm.py makes one
PROBLEMS = [Problem("add 1 and 2", "1 + 2", "here:1"), Problem("take 4 from 9", "9 - 4", "here:2")]
SIZE = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 64, "max_position_embeddings": 512}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}


def policy(seed: int) -> Policy:
    """A small one, whose head is its own: vLLM 0.32 on a CPU keeps one that is tied."""
    tokenizer = build_tokenizer()
    ids = {"vocab_size": len(tokenizer), "eos_token_id": 2, "pad_token_id": 0, "bos_token_id": None}
    torch.manual_seed(seed)
    config = Qwen3Config(**ids, **SIZE, **HEADS, initializer_range=0.15, tie_word_embeddings=False)
    return Policy(Qwen3ForCausalLM(config).eval(), tokenizer, torch.device("cpu"), torch.float32)


@torch.no_grad()
def require_log_probs(rollouts: Rollouts, of: Policy, temperature: float = 1.0) -> None:
    """Assert that they are those of the model's own forward pass, a sequence at a time."""
    for p, prompt in enumerate(rollouts.prompts):
        for g, length in enumerate(rollouts.lengths[p]):
            tokens = torch.tensor(rollouts.tokens[p, g, :length], dtype=torch.int64)
            ids = torch.cat([torch.tensor(prompt, dtype=torch.int64), tokens])[None]
            logits = of.model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
            expected = (logits / temperature).log_softmax(-1).gather(1, tokens[:, None])[:, 0]
            np.testing.assert_allclose(rollouts.logprobs[p, g, :length], expected, atol=1e-4, rtol=0)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    for name in ("sampler", "mirror"):
        drop(name)


def published(run: Path, step: int) -> PolicyVersion:
    """A version of its own weights, stored whole."""
    save_policy(policy(step), run / "made")
    weights = read_weights(run / "made")
    version = PolicyVersion(step, weights_uri(str(run), step), weights_digest(weights))
    manifest = describe(weights, version, None, 1.0, {})
    store.write_folder(version.uri, run / "made", meta=manifest.model_dump(mode="json"), move=True)
    return version


def generator(address: str, temperature: float = 1.0) -> Generator:
    sampling = SamplingConfig(max_tokens=10, temperature=temperature)
    return Generator(PolicyConfig(device="cpu", engine=address), sampling, samples=3, seed=0)


@pytest.fixture
def versions(tmp_path: Path) -> list[PolicyVersion]:
    return [published(tmp_path / "run", step) for step in (0, 1)]


@pytest.fixture
def like() -> Iterator[VllmLike]:
    with vllm_like(policy(7)) as served:
        yield served


def test_each_version_is_sampled_with_its_own_weights(like: VllmLike, versions: list[PolicyVersion]) -> None:
    for step, at in enumerate((0, 0, 1, 0)):
        rollouts = generator(like.address).generate(versions[at], step, [0, 1], PROBLEMS)
        assert like.named.startswith(f"rlvf {versions[at].digest}:")
        inside = np.arange(rollouts.tokens.shape[2]) < rollouts.lengths[:, :, None]
        assert (rollouts.versions[inside] == at).all()
        require_log_probs(rollouts, policy(at))
    reloads = sum(path == "/collective_rpc" for path, _ in like.asked)
    assert reloads == 2 + 1 + 1  # by the first lease of moved weights, too; none of what it has


def test_a_server_that_began_anew_is_given_the_weights_again(like: VllmLike, versions: list[PolicyVersion]) -> None:
    before = generator(like.address).generate(versions[0], 0, [0], PROBLEMS[:1])
    like.named = "default"
    for value in like.policy.weights().values():
        value.zero_()
    like.asked.clear()
    again = generator(like.address).generate(versions[0], 0, [0], PROBLEMS[:1])
    assert sum(path == "/collective_rpc" for path, _ in like.asked) == 2  # and tried again
    assert np.array_equal(before.tokens, again.tokens)


def test_weights_that_change_while_it_samples_are_an_error(like: VllmLike, versions: list[PolicyVersion]) -> None:
    generator(like.address).generate(versions[0], 0, [0], PROBLEMS[:1])

    def another(path: str, answer: Any) -> Any:
        if path == "/v1/completions":
            like.named = "another run's"
        return answer

    like.spoil = another
    with pytest.raises(ServerError, match="was given other weights while it sampled from v0; each run needs"):
        generator(like.address).generate(versions[0], 0, [0], PROBLEMS[:1])


@pytest.mark.parametrize("in_time", [True, False], ids=["it fails", "its process is killed"])
def test_a_later_hand_over_that_fails_is_made_again(
    like: VllmLike, versions: list[PolicyVersion], in_time: bool
) -> None:
    generator(like.address).generate(versions[0], 0, [0], PROBLEMS[:1])
    resume = (lambda path: path == "/resume") if not in_time else (lambda _: False)
    like.spoil = lambda path, answer: 500 if path == "/collective_rpc" or resume(path) else answer
    with pytest.raises(ServerError):
        generator(like.address).generate(versions[1], 1, [0], PROBLEMS[:1])
    like.paused = not in_time
    like.spoil = lambda _, answer: answer
    rollouts = generator(like.address).generate(versions[1], 1, [0], PROBLEMS[:1])
    require_log_probs(rollouts, policy(1))
    assert not like.paused


def test_a_reload_that_fails_is_no_version(like: VllmLike, versions: list[PolicyVersion]) -> None:
    like.spoil = lambda path, answer: 500 if path == "/collective_rpc" else answer
    with pytest.raises(ServerError, match="could not take the weights"):
        generator(like.address).generate(versions[0], 0, [0], PROBLEMS[:1])
    like.spoil = lambda _, answer: answer
    assert generator(like.address).generate(versions[0], 0, [0], PROBLEMS[:1]).lengths.all()


def test_a_server_is_asked_before_a_run(like: VllmLike) -> None:
    check_server(PolicyConfig(engine=like.address))
    with pytest.raises(ServerError, match=r"^policy\.engine: the server at http://127.0.0.1:\d+ cannot be reached"):
        check_server(PolicyConfig(engine=f"http://127.0.0.1:{free_port()}"))


# -- a real one


needs_vllm = pytest.mark.skipif(
    VLLM is None, reason="VLLM_PYTHON names no Python with vLLM; python -m tests.bench.vllm makes one"
)


@needs_vllm
@pytest.mark.timeout(1200)  # its start alone takes a minute of a core
def test_a_real_vllm_samples_each_version(versions: list[PolicyVersion], tmp_path: Path) -> None:
    with serving(VLLM or "", versions[0].uri, tmp_path / "log") as address:
        for temperature in (0.7, 1.0, 1.5):
            for at in (0, 1, 0):
                lease = versions[at], 0, [0, 1], PROBLEMS
                rollouts, again = (generator(address, temperature).generate(*lease) for _ in range(2))
                assert np.array_equal(rollouts.tokens, again.tokens)
                require_log_probs(rollouts, policy(at), temperature)
        greedy = replace(generator(address), samples=1, greedy=True)
        ours = replace(greedy, policy=PolicyConfig(device="cpu"))
        found = [each.generate(versions[0], 0, [0, 1], PROBLEMS).tokens for each in (greedy, ours)]
        assert np.array_equal(*found)


@needs_vllm
@pytest.mark.timeout(1200)  # its start alone takes a minute of a core
def test_a_real_vllm_that_says_log_probs_without_the_temperature_is_refused(
    versions: list[PolicyVersion], tmp_path: Path
) -> None:
    with (
        serving(VLLM or "", versions[0].uri, tmp_path / "log", options=()) as address,
        pytest.raises(ServerError, match="was started without --logprobs-mode processed_logprobs"),
    ):
        generator(address).generate(versions[0], 0, [0], PROBLEMS[:1])
