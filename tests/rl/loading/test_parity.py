import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft.tuners.lora import LoraLayer
from transformers import PreTrainedTokenizerBase

from rl.config import PolicyConfig
from rl.learning.packing import pack
from rl.loading import parity
from rl.loading.parity import measure, require_parity
from rl.loading.policy import load_policy
from rl.lora_config import LoraConfig
from rl.model import head
from rl.model.policy import Policy, UnknownModelError
from tests.bench.architectures import ARCHITECTURES, build
from tests.bench.parity import findings, table
from tests.rl.saved import saved

DOCS = Path(__file__).parents[3] / "docs" / "models.md"
AGREE = ("GPT-2", "Llama", "Mixtral", "Qwen3", "Gemma 2", "Gemma 3, with vision", "Granite", "Cohere 2", "NanoChat")
REFUSED = ("LFM2", "Mamba 2", "RecurrentGemma", "MPT", "GPT-Neo")


def chosen(names: tuple[str, ...]) -> tuple:  # type: ignore[type-arg]
    found = tuple(one for one in ARCHITECTURES if one.name in names)
    assert len(found) == len(names)
    return found


@pytest.mark.slow
def test_architectures_agree_with_the_model_or_are_refused_in_one_line_at_load() -> None:
    for finding in findings(chosen(AGREE)):
        assert finding.gap is not None, finding
        assert finding.gap < 1e-4
    for finding in findings(chosen(REFUSED)):
        assert finding.gap is None, finding
        assert "\n" not in finding.line
        assert "docs/models.md" in finding.line
    [recurrent] = findings(chosen(("RecurrentGemma",)))
    assert float(re.search(r"sampler are ([\d.]+) nats", recurrent.line)[1]) > 0.01  # type: ignore[index]


def small(name: str, tokenizer: PreTrainedTokenizerBase, **changes: object) -> Policy:
    [architecture] = chosen((name,))
    model = build(replace(architecture, changes={**architecture.changes, **changes}), len(tokenizer))
    return Policy(model, tokenizer, torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("fault", ["mask", "positions", "cap"])
@pytest.mark.parametrize("name", ["Llama", "NanoChat", "Gemma 3, with vision"])
def test_a_mistake_in_masks_positions_or_head_is_refused(
    fault: str, name: str, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = small(name, tokenizer)
    require_parity(policy, "there")
    match fault:
        case "mask":  # completions see each other
            leak = lambda packed: replace(packed, mask=torch.ones_like(packed.mask).tril())  # noqa: E731
            monkeypatch.setattr(parity, "pack", lambda *given: leak(pack(*given)))
        case "positions":  # counted along the row
            count = lambda packed: replace(packed, positions=torch.arange(packed.tokens.shape[1])[None])  # noqa: E731
            monkeypatch.setattr(parity, "pack", lambda *given: count(pack(*given)))
        case _:
            plain = type(policy.model).forward
            monkeypatch.setattr(
                type(policy.model),
                "forward",
                lambda *given, **named: _changed(plain(*given, **named)),
            )
    with pytest.raises(UnknownModelError, match=r"policy.model 'there' .*nats.*0.001 are allowed") as caught:
        require_parity(policy, "there")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("base", ["float32", "bfloat16"])
def test_adapters_that_the_learner_does_not_apply_are_noticed_while_they_are_new(
    base: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PolicyConfig(device="cpu", lora=LoraConfig.model_validate({"rank": 4, "base": base}))
    path = saved(tmp_path, small("Qwen3", tokenizer).model, tokenizer)
    policy = load_policy(path, config, master=True)
    assert not any(value.any() for name, value in policy.weights().items() if ".lora_B." in name)
    scores = parity.token_scores

    def without(*given, **named):  # type: ignore[no-untyped-def]
        for module in policy.model.modules():
            if isinstance(module, LoraLayer):
                module.enable_adapters(False)
        return scores(*given, **named)

    monkeypatch.setattr(parity, "token_scores", without)
    with pytest.raises(UnknownModelError, match="those of the learner"):
        require_parity(policy, path)


def _changed(output):  # type: ignore[no-untyped-def]
    output.logits = output.logits / 2
    return output


def test_the_window_of_a_model_that_also_sees_is_that_of_its_language_model(tokenizer: PreTrainedTokenizerBase) -> None:
    assert small("Gemma 3, with vision", tokenizer, sliding_window=20).window == 20
    assert small("Gemma 3, with vision", tokenizer).positions == 256


def test_in_half_precision_the_mean_is_compared(make_policy: Callable[..., Policy]) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        policy = make_policy("llama")
        policy.model.to(dtype)
        found = measure(replace(policy, dtype=dtype))
        assert 1e-5 < found.gap < found.tolerance
    learner = replace(make_policy("llama"), dtype=torch.bfloat16)  # its parameters are float32
    assert measure(learner).tolerance == 1e-3
    assert measure(learner).gap < 1e-4


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), RuntimeError("could not create a primitive")])
def test_running_out_of_memory_is_no_fault_of_the_model(
    make_policy: Callable[..., Policy], monkeypatch: pytest.MonkeyPatch, error: RuntimeError
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(parity, "pack", full)
    with pytest.raises(type(error), match=str(error)):
        require_parity(make_policy(), "there")


def test_attention_that_caps_its_scores_is_computed_by_transformers(tokenizer: PreTrainedTokenizerBase) -> None:
    assert head.attention_for(small("Gemma 2", tokenizer).model.config) == "eager"
    assert head.attention_for(small("Llama", tokenizer).model.config) == "sdpa"


@pytest.mark.slow
def test_the_table_in_the_documentation_is_what_is_found() -> None:
    """All of them: half a minute on a quiet machine."""
    found = list(findings())
    lines = table(found)
    assert len(lines) >= 42
    written = DOCS.read_text().partition(lines[0])
    assert blanked(lines) == blanked([lines[0], *written[2].partition("\n\n")[0].splitlines()[1:]])
    assert all(one.gap < 1e-4 for one in found if one.gap is not None)


def blanked(lines: list[str]) -> list[str]:
    """Without the figures, which are a little different on every processor."""
    figure = r"(?<=agrees, )\S+|(?<=sampler are )\S+|(?<=learner )\d\S*"
    return [re.sub(figure, "…", line) for line in lines]
