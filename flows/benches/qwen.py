"""A model of the shape of Qwen3-0.6B with random weights: nothing is fetched."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

# 28 layers, hidden 1024, 16 query and 8 key heads of 128, MLP 3072, vocabulary 151,936, tied head
LAYERS, HIDDEN, QUERIES, KEYS, MLP, VOCABULARY = 28, 1024, 2048, 1024, 3072, 151_936


def random_qwen(
    device: torch.device,
    dtype: torch.dtype,
    layers: int = LAYERS,
    vocabulary: int = VOCABULARY,
    sizes: Mapping[str, int] | None = None,
) -> Qwen3ForCausalLM:
    """The same weights at each call on a device; perhaps fewer layers or tokens, or other `sizes`."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_attention_heads": QUERIES // 128,
        "num_key_value_heads": KEYS // 128,
        **(sizes or {}),
    }
    with device:
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=vocabulary, num_hidden_layers=layers, head_dim=128, tie_word_embeddings=True, **settings
            )
        )
    model.to(device, dtype)  # type: ignore[arg-type]  # transformers wraps it
    model.eval()  # type: ignore[no-untyped-call]
    return model
