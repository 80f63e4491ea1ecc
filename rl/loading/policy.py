"""Models as transformers loads them, and whether sampler and learner agree with them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers.utils import GENERATION_CONFIG_NAME

from rl.config import PolicyConfig
from rl.loading.parity import require_parity
from rl.loading.pretrained import pretrained, unloadable
from rl.lora_config import OtherBaseError
from rl.model.lora import Base, add_adapters, base_digest, read_base
from rl.model.memory import room_for
from rl.model.narrow import compute_in, widen_buffers
from rl.model.policy import (
    DTYPES,
    Policy,
    UnknownModelError,
    choose_device,
    choose_dtype,
    copied_weights,
    dtype_name,
    own_dtype,
    read_weights,
)
from rl.model.rounding import rounded
from rl.model.skeleton import on_meta, settings_of
from rl.model.tokenizer import read_tokenizer
from rl.model.unloadable import reason


def load_policy(
    path: str,
    config: PolicyConfig,
    *,
    master: bool = False,
    whole: bool = False,
    weights: Mapping[str, Tensor] | None = None,
    adapters: Path | None = None,
    check: bool = True,
) -> Policy:
    """Load a model and its tokenizer from a hub id or a folder, ``path``; ``config`` says where and how to compute.
    With ``config.lora.rank`` it is frozen and has adapters, new ones unless there are others.

    Args:
        master: keep what is trained in float32 whatever the arithmetic's dtype, as a learner needs it.
        whole: lose nothing of its own type (`own_dtype`), whatever the arithmetic's.
        weights: take these instead of those in the folder; the adapters', where the policy has some.
        adapters: a folder with the adapters' configuration, their tokenizer, and which base they belong to; their
            ``weights`` are given or else as in the folder.
        check: see that sampler and learner agree with it; false for a model that neither will use.

    Raises:
        UnknownModelError: transformers cannot load it, it does not say where its completions end, it has no place for
            the adapters, or sampler and learner disagree with it.
        OtherBaseError: it is another than the adapters belong to.
        NoRoomError: it does not fit into the device's memory.
    """
    device = choose_device(config.device)
    lora = config.lora.rank > 0
    was = None if adapters is None else read_base(adapters)
    beside = str(adapters or path)
    with unloadable(f"policy.model {path!r} cannot be loaded"):
        tokenizer = read_tokenizer(beside)
        settings = settings_of(path)
        dtype = choose_dtype(config.dtype, device, lambda: on_meta(settings).num_parameters())
        least = torch.float32 if master else own_dtype(settings) if whole else dtype
        kept = _kept(config, dtype, was) if lora else torch.promote_types(least, dtype)
        kind, given = transformers.AutoModelForCausalLM, None
        if handed := weights is not None and not lora:
            # by its class, which takes weights from memory and draws no random ones first
            kind, given = _class_of(settings), copied_weights(weights or {}, rounded(on_meta(settings), kept))
        helps = () if lora or not master else ("policy.lora 16 with policy.lora.base bfloat16",)
        model, missing = pretrained(kind.from_pretrained, path, settings, kept, device, helps, given)
        if (handed or adapters is not None) and Path(beside, GENERATION_CONFIG_NAME).is_file():
            model.generation_config = transformers.GenerationConfig.from_pretrained(beside)
    if missing:
        # transformers fills them with random numbers and goes on
        raise UnknownModelError(f"policy.model {path!r}: no weights for {missing[0]} and {len(missing) - 1} more")
    if getattr(model, "_hf_peft_config_loaded", False):  # transformers puts them in where it finds them
        raise UnknownModelError(f"policy.model {path!r}: has adapters of its own; merge them into it first")
    base = freeze(model, path, config, dtype, was, master=master) if lora else None
    with room_for(f"policy.model {path!r}", device, helps):
        model.to(device)
    model.eval()
    policy = Policy(model, tokenizer, device, dtype, base)
    if adapters is not None:
        policy.load_weights(read_weights(adapters) if weights is None else weights)
    if not policy.ends:
        raise UnknownModelError(
            f"policy.model {path!r}: its tokenizer, its chat template and its generation_config.json name no "
            "end-of-sequence token"
        )
    if check:
        require_parity(policy, path)
    return policy


def _kept(config: PolicyConfig, dtype: torch.dtype, was: Base | None) -> torch.dtype:
    """The type that a frozen model is rounded to: as its adapters were trained with it, else as is configured."""
    if was is not None:
        return DTYPES[was.dtype]
    kept = dtype if config.lora.base == "auto" else DTYPES[config.lora.base]
    if kept.itemsize == dtype.itemsize and kept != dtype:
        raise UnknownModelError(
            f"policy.lora.base {config.lora.base}: does not go with arithmetic in {dtype}; give auto"
        )
    return kept


def freeze(model: Any, path: str, config: PolicyConfig, dtype: torch.dtype, was: Base | None, *, master: bool) -> Base:
    """Freeze a model that was just loaded, in the type that it is rounded to, and put new adapters into it; returns
    which one it is. ``was`` is the base of adapters that were trained before. For a learner where ``master``.

    Raises UnknownModelError and OtherBaseError."""
    kept = model.dtype
    base = Base(path, dtype_name(kept), base_digest(model))
    if was is not None and was.digest != base.digest:
        raise OtherBaseError(
            f"policy.model {path!r}: is another than the one that the adapters were trained on; restore that one"
        )
    wider = kept.itemsize < dtype.itemsize
    if master and wider:
        compute_in(model, dtype)
    elif not master:
        if wider:
            widen_buffers(model, dtype)
        types = rounded(model, dtype)
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data.to(types(name))
    try:
        add_adapters(model, config.lora, torch.float32 if master else dtype, kept if master and not wider else dtype)
    except ValueError as error:
        raise UnknownModelError(f"policy.model {path!r} ({type(model).__name__}): {reason(error)}") from error
    return was or base


def _class_of(settings: transformers.PretrainedConfig) -> Any:
    """The class that the configuration names. Raises ValueError where transformers has no such model."""
    named = next(iter(settings.architectures or ()), None)
    found = getattr(transformers, str(named), None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise ValueError(f"architectures of its config.json names no model that transformers knows: {named!r}")
    return found
