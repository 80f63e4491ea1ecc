"""Weights in the type in which they are published."""

from collections.abc import Mapping

import torch
from torch import Tensor

from infra.weights.quantization import quantized
from infra.weights.whole import PublicModel
from rl.config import PolicyConfig
from rl.loading.policy import load_policy
from rl.model.policy import DTYPES, Policy, copied_weights, dtype_name


def published_type(asked: str, policy: Policy) -> str:
    """The type in which this policy is published, if `sync.dtype` is this: ``auto`` is that of the arithmetic, or, of
    adapters, that in which the frozen weights are kept: fewer bytes, for a mismatch as of rounded weights."""
    if asked != "auto":
        return asked
    return dtype_name(policy.dtype) if policy.base is None else policy.base.dtype


def as_published(weights: Mapping[str, Tensor], dtype: str, policy: Policy) -> dict[str, Tensor]:
    """A copy on the CPU of weights of this policy, rounded to a floating point type, or as ``int8`` with scales. What
    transformers keeps in float32 is published so."""
    if dtype == "int8":
        types = policy.types(torch.int8)
        return quantized(weights, lambda name: types(name) == torch.float32)
    return copied_weights(weights, policy.types(DTYPES[dtype]))


def public_model(name: str, policy: PolicyConfig) -> PublicModel:
    """A model that every machine loads by itself, rounded as the trainer rounds it."""

    def load(dtype: str) -> dict[str, Tensor]:
        on_cpu = policy.model_copy(update={"device": "cpu"})
        loaded = load_policy(name, on_cpu, master=True, check=False)
        return as_published(loaded.weights(), dtype, loaded)

    return PublicModel(name, load)
