"""Weights in the type in which they are published."""

from collections.abc import Mapping

from torch import Tensor

from infra.weights.quantization import quantized
from infra.weights.whole import PublicModel
from rl.config import PolicyConfig
from rl.loading import load_policy
from rl.model.policy import DTYPES, copied_weights


def as_published(weights: Mapping[str, Tensor], dtype: str) -> dict[str, Tensor]:
    """A copy on the CPU in a floating point type, or as ``int8`` with scales."""
    return quantized(weights) if dtype == "int8" else copied_weights(weights, DTYPES[dtype])


def public_model(name: str, policy: PolicyConfig) -> PublicModel:
    """A model that every machine loads by itself, rounded as the trainer rounds it."""

    def load(dtype: str) -> dict[str, Tensor]:
        on_cpu = policy.model_copy(update={"device": "cpu"})
        return as_published(load_policy(name, on_cpu, master=True, check=False).weights(), dtype)

    return PublicModel(name, load)
