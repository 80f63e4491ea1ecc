"""Models as transformers loads them, and whether sampler and learner agree with them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from torch import Tensor
from transformers.utils import GENERATION_CONFIG_NAME

from rl.config import PICKLED, PolicyConfig
from rl.model.head import attention_for
from rl.model.memory import room_for
from rl.model.policy import Policy, UnknownModelError, choose_device, choose_dtype, copied_weights
from rl.parity import require_parity


def load_policy(
    path: str,
    config: PolicyConfig,
    *,
    master: bool = False,
    weights: Mapping[str, Tensor] | None = None,
    check: bool = True,
) -> Policy:
    """Load a model and its tokenizer from a hub id or a folder, ``path``; ``config`` says where and how to compute.

    Args:
        master: keep the parameters in float32 whatever the arithmetic's dtype, as a learner needs them.
        weights: take these instead of those in the folder.
        check: see that sampler and learner agree with it; false for a model that neither will use.

    Raises:
        UnknownModelError: transformers cannot load it, it does not say where its completions end, or sampler and
            learner disagree with it.
        NoRoomError: it does not fit into the device's memory.
    """
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    load: Any = transformers.AutoModelForCausalLM.from_pretrained  # its type leaves out that it can return a pair
    try:
        # neither code nor pickles of a model run here: a folder may come from anywhere
        tokenizer = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        settings = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
        kept = torch.float32 if master else dtype
        given: dict[str, Any] = {"trust_remote_code": False, "use_safetensors": True}
        if weights is not None:
            # by its class, which takes weights from memory and draws no random ones first
            load = _class_of(settings).from_pretrained
            given = {"state_dict": copied_weights(weights, kept)}
        model, loading = load(
            None if weights is not None else path,
            config=settings,
            dtype=kept,
            attn_implementation=attention_for(settings),
            output_loading_info=True,
            **given,
        )
        if weights is not None and Path(path, GENERATION_CONFIG_NAME).is_file():
            model.generation_config = transformers.GenerationConfig.from_pretrained(path)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UnknownModelError(f"policy.model {path!r} cannot be loaded: {_reason(error)}") from error
    if missing := sorted(loading["missing_keys"]):
        # transformers fills them with random numbers and goes on
        raise UnknownModelError(f"policy.model {path!r}: no weights for {missing[0]} and {len(missing) - 1} more")
    with room_for(f"policy.model {path!r}", device):
        model.to(device)
    model.eval()
    policy = Policy(model, tokenizer, device, dtype)
    if not policy.ends:
        raise UnknownModelError(
            f"policy.model {path!r}: its tokenizer, its chat template and its generation_config.json name no "
            "end-of-sequence token"
        )
    if check:
        require_parity(policy, path)
    return policy


def _class_of(settings: transformers.PretrainedConfig) -> Any:
    """The class that the configuration names. Raises ValueError where transformers has no such model."""
    named = next(iter(settings.architectures or ()), None)
    found = getattr(transformers, str(named), None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise ValueError(f"architectures of its config.json names no model that transformers knows: {named!r}")
    return found


def _reason(error: Exception) -> str:
    """One line, with the remedy where transformers would suggest what is not done here."""
    words = str(error).strip()
    if "custom code" in words or "trust_remote_code" in words:
        return "it needs code of its own, which is never run here; take a model that transformers knows"
    if "no file named model.safetensors" in words or "safetensors variant" in words:
        return f"it has no model.safetensors, and {PICKLED}"
    return words.splitlines()[0] if words else type(error).__name__
