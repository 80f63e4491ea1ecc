"""How long a sequence may be where a model rotates positions by the longest row of a batch."""

from typing import Any

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM, PreTrainedTokenizerBase

from rl.model.policy import Policy

ORIGINAL = 32
LONGROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0] * 4}


def phi(tokenizer: PreTrainedTokenizerBase, rope: dict[str, Any] | None) -> Policy:
    torch.manual_seed(0)
    build: Any = Phi3ForCausalLM  # untyped
    config = Phi3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        initializer_range=0.15,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
        max_position_embeddings=256,
        original_max_position_embeddings=ORIGINAL,
        rope_parameters=rope,
    )
    return Policy(build(config).eval(), tokenizer, torch.device("cpu"), torch.float32)


def test_no_sequence_reaches_where_longrope_rotates_otherwise(tokenizer: PreTrainedTokenizerBase) -> None:
    policy = phi(tokenizer, LONGROPE)
    tokens = torch.arange(3, ORIGINAL + 4)[None]
    with torch.no_grad():
        within, beyond = (policy.model(tokens[:, :length]).logits[:, :8] for length in (ORIGINAL, ORIGINAL + 1))
        alone = policy.model(tokens[:, :8]).logits
    assert torch.allclose(alone, within, atol=1e-5)
    assert not torch.allclose(alone, beyond, atol=1e-2)  # the same tokens, after which more come
    assert policy.positions == ORIGINAL
    policy.check_room(8, ORIGINAL - 8)
    with pytest.raises(ValueError, match=f"range of positions of {ORIGINAL}; 24 are left"):
        policy.check_room(8, ORIGINAL - 7)


def test_without_longrope_the_whole_range_is_used(tokenizer: PreTrainedTokenizerBase) -> None:
    assert phi(tokenizer, None).positions == 256
