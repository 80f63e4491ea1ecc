"""A model on PyTorch's meta device, whose tensors have a shape and no memory: from its configuration alone."""

from typing import Any

import torch
import transformers
from transformers import PreTrainedModel

from rl.config import TINY
from rl.model.head import attention_for
from rl.model.policy import UnknownModelError
from rl.model.tiny import build_model, build_tokenizer
from rl.model.unloadable import reason

META = torch.device("meta")


def skeleton(model: str) -> PreTrainedModel:
    """That of a hub id, whose configuration is fetched, a folder, or the tiny policy. Raises UnknownModelError."""
    if model == TINY:
        words = build_tokenizer()
        with META:
            tiny = build_model(len(words), words.eos_token_id, words.pad_token_id, 0)
        tiny.eval()  # type: ignore[no-untyped-call]
        return tiny
    try:
        return on_meta(settings_of(model))
    except Exception as error:  # a configuration may say anything, and transformers raises as much
        raise UnknownModelError(f"policy.model {model!r} cannot be loaded: {reason(error)}") from error


def settings_of(model: str, **changes: Any) -> Any:
    """The configuration of a hub id or a folder, with changes."""
    return transformers.AutoConfig.from_pretrained(model, trust_remote_code=False, **changes)


def on_meta(settings: Any) -> PreTrainedModel:
    """That of a model's configuration, in float32."""
    build: Any = transformers.AutoModelForCausalLM.from_config  # untyped
    with META:
        made: PreTrainedModel = build(settings, attn_implementation=attention_for(settings), dtype=torch.float32)
    made.eval()  # type: ignore[no-untyped-call]
    return made
