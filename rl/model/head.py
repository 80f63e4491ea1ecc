"""The two halves of a causal language model. Sampler and learner run them apart, to compute logits only where they are
needed; :mod:`rl.loading.parity` sees that together they are the model.

Legend: B sequences, L positions, N selected positions, H hidden size, V vocabulary.
"""

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import PretrainedConfig, PreTrainedModel

from rl.model.products import NARROW, wide_product


def hidden_states(model: PreTrainedModel, *, mask: Tensor | BlockMask | None = None, **inputs: Any) -> Tensor:
    """[B, L, H]: the decoder's last hidden states, before the head.

    ``mask`` [B, 1, L, K] is True where a query (third axis) sees a key (fourth), or what is added to its score; without
    one attention is causal. One of blocks is for inside of `rl.model.blocks.in_blocks`.
    """
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    # transformers' own attention adds the mask to the scores
    if isinstance(mask, Tensor) and mask.dtype == torch.bool and attention_of(model) == "eager":
        scores = torch.zeros(mask.shape, dtype=model.dtype, device=mask.device)
        mask = scores.masked_fill_(~mask, torch.finfo(model.dtype).min)
    states: Tensor = decoder(attention_mask=mask, **inputs).last_hidden_state
    return states


def shared_mask(model: PreTrainedModel, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask [B, 1, L, K] of an attention in ``dtype`` as all layers use it: on a processor PyTorch's fused one makes
    numbers of booleans anew in each layer, and keeps them for the backward pass."""
    if mask.device.type != "cpu" or attention_of(model) != "sdpa":
        return mask
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, float("-inf"))


def head_logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """[N, V] in float32, or float64, from hidden states [N, H]."""
    head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if type(head) is nn.Linear and hidden.dtype == head.weight.dtype in NARROW:
        return finished_logits(model, wide_product(hidden, head.weight, head.bias))
    return finished_logits(model, head(hidden))


def finished_logits(model: PreTrainedModel, logits: Tensor) -> Tensor:
    """What some models do to the output [N, V] of their head, in float32 or float64.

    Cohere multiplies by ``logit_scale``, Granite divides by ``logits_scaling``; Gemma 2 and others cap:
    c * tanh(logits / c) with c = ``final_logit_softcapping`` (arXiv 2408.00118, section 2).
    """
    logits = logits if logits.dtype == torch.float64 else logits.float()
    config = model.config.get_text_config()
    if factor := getattr(config, "logit_scale", None):
        logits = logits * factor
    if divisor := getattr(config, "logits_scaling", None):
        logits = logits / divisor
    if cap := getattr(config, "final_logit_softcapping", None):
        logits = cap * torch.tanh(logits / cap)
    return logits


def attention_of(model: PreTrainedModel) -> str:
    """The implementation of attention that the model was loaded with."""
    return str(getattr(model.config.get_text_config(), "_attn_implementation", None) or "eager")


def attention_for(config: PretrainedConfig) -> str:
    """The implementation of attention to load a model with: PyTorch's fused one, or transformers' own where the fused
    one cannot do what the model does (capped scores, sinks)."""
    kind = getattr(transformers, (config.architectures or [""])[0], None)
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    return "eager" if capped or not getattr(kind, "_supports_sdpa", True) else "sdpa"
