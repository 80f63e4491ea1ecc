"""LoRA: a frozen model, and adapters that are trained, put into it by peft.

A linear layer W x, with W [out, in], becomes W x + (alpha / r) B A x, with A [r, in] and B [out, r], of which B begins
at 0 (Hu et al., arXiv 2106.09685, section 4.1). Adapters are saved and published as peft saves them, without the frozen
model; beside them stands which one that is.
"""

import json
import logging
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from blake3 import blake3
from pydantic import TypeAdapter
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from rl.lora_config import LoraConfig
from rl.model.rounding import rounded
from rl.model.tied import named_weights

BASE = "base.json"
ADAPTERS = "adapter_model.safetensors"  # as peft calls it
SETTINGS = "adapter_config.json"
PREFIX = "base_model.model."  # of the names in it
LINEAR = ("Linear", "Conv1D", "FalconLinear")  # classes; others derived from them route, or quantise
# beside experts, which are one tensor for all of them, peft takes layers of these names for theirs
OF_EXPERTS = ("gate", "gate_proj", "up_proj", "down_proj", "w1", "w2", "w3")
NAME = "default"  # of the adapters, in the modules of peft

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # where it is installed, peft imports it: advice on 4 bits


@dataclass(frozen=True)
class Base:
    """The frozen model that adapters belong to."""

    model: str  # a hub id or a folder
    dtype: str  # that its weights are rounded to
    digest: str  # blake3 of them, so rounded


def read_base(folder: Path) -> Base:
    """The base of the adapters in a folder."""
    return TypeAdapter(Base).validate_json((folder / BASE).read_bytes())


def add_adapters(model: PreTrainedModel, config: LoraConfig, dtype: torch.dtype, activations: torch.dtype) -> None:
    """Freeze a model whose activations are of one type, without autocast, and put adapters of another into it; they
    are as `draw_adapters` makes them.

    Raises ValueError where ``config.targets`` names no linear layer.
    """
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    targets = adapted_layers(model, config.targets)
    transposed = any(isinstance(module, Conv1D) for name, module in model.named_modules() if _meant(name, targets))
    peft = PeftConfig(
        r=config.rank,
        lora_alpha=config.alpha,  # type: ignore[arg-type]  # a number in all of its arithmetic
        target_modules=targets,
        fan_in_fan_out=transposed,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of transformers, about how peft asks it
        inject_adapter_in_model(peft, model, NAME)
    for module in model.modules():
        if isinstance(module, LoraLayer):
            # peft would widen what autocast narrows again, except where adapters alone are wide
            module.cast_input_dtype_enabled = activations != dtype
    draw_adapters(model, 0)
    for parameter in adapters_of(model).values():
        parameter.data = parameter.data.to(dtype)


def draw_adapters(model: PreTrainedModel, seed: int) -> None:
    """Begin anew with the adapters, the same for the same seed on every machine: A is uniform, as peft draws it
    (Kaiming, a = sqrt(5)), and B is 0."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in sorted(adapters_of(model).items()):
            drawn = torch.zeros(parameter.shape)
            if ".lora_A." in name:
                nn.init.kaiming_uniform_(drawn, math.sqrt(5), generator=source)
            parameter.copy_(drawn)


@contextmanager
def moved_adapters(model: nn.Module) -> Iterator[None]:
    """Inside, every B is some random numbers away from where it is, and so not 0, as that of new adapters."""
    source = torch.Generator().manual_seed(0)
    found = [value.detach() for name, value in sorted(adapters_of(model).items()) if ".lora_B." in name]
    before = [value.clone() for value in found]
    try:
        for value in found:
            value.add_(0.02 * torch.randn(value.shape, generator=source).to(value))
        yield
    finally:
        for value, was in zip(found, before, strict=True):
            value.copy_(was)


def adapters_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters of the adapters, by the names that peft saves them under."""
    return {
        PREFIX + name.replace(f".{NAME}.", "."): parameter
        for name, parameter in model.named_parameters()
        if ".lora_A." in name or ".lora_B." in name
    }


def base_weights(model: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights of the frozen model on the CPU by their own names, those that are tied once, and rounded to ``dtype``
    where they are wider; no copy where they are as they should be."""
    found: dict[str, Tensor] = {}
    types = rounded(model, dtype)
    for name, value in named_weights(model).items():
        if ".lora_A." in name or ".lora_B." in name:
            continue
        own = name.replace(".base_layer.", ".")
        wider = value.is_floating_point() and value.dtype.itemsize > types(own).itemsize
        found[own] = value.detach().to("cpu", types(own) if wider else value.dtype).contiguous()
    return found


def base_digest(model: nn.Module) -> str:
    """blake3 over names, shapes and bits of the model's weights as they are, before adapters are added."""
    digest = blake3()
    for name, value in sorted(base_weights(model, torch.float64).items()):
        digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def merged_weights(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """The weights of the model with its adapters added, `rounded` to ``dtype``; each sum is computed in float32."""
    from peft.tuners.lora import Linear

    types = rounded(model, dtype)
    layers = {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, Linear)}
    for name, value in base_weights(model, torch.float64).items():
        if (layer := layers.get(name)) is not None:
            value = value.float() + layer.get_delta_weight(NAME).detach().to("cpu", torch.float32)
        yield name, value.to(types(name)) if value.is_floating_point() else value


def save_lora(model: PreTrainedModel, base: Base, folder: Path) -> None:
    """Write what lies beside adapters: peft's configuration, and which base they belong to."""
    peft = model.peft_config[NAME]
    peft.base_model_name_or_path = base.model
    peft.inference_mode = True
    peft.save_pretrained(str(folder))
    settings = json.loads((folder / SETTINGS).read_bytes())
    settings["target_modules"] = sorted(settings["target_modules"])  # a set, in each process in another order
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
    (folder / BASE).write_text(json.dumps(asdict(base), indent=2) + "\n")


def adapted_layers(model: PreTrainedModel, wanted: tuple[str, ...]) -> list[str]:
    """The layers that get adapters, by the ends of their names, or whole where others end like that.

    Raises ValueError where one that is ``wanted`` names no linear layer, or there is none."""
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    experts = OF_EXPERTS if any(parameter.ndim > 2 for parameter in decoder.parameters()) else ()
    inside = {id(module) for module in decoder.modules() if type(module).__name__ in LINEAR and module is not head}
    names = [name for name, module in model.named_modules() if id(module) in inside]
    ends = {name.rpartition(".")[2] for name in names}.difference(experts)
    if unknown := sorted(set(wanted) - ends):
        there = ", ".join(sorted(ends)) or "none"
        raise ValueError(f"policy.lora.targets: no linear layer {unknown[0]!r} can have an adapter; there are {there}")
    if not ends:
        raise ValueError("policy.lora.rank: this model has no linear layers that adapters could be put on")
    meant = sorted(set(wanted) or ends)
    chosen = [name for name in names if _meant(name, meant)]
    return meant if len(chosen) == sum(_meant(name, meant) for name, _ in model.named_modules()) else chosen


def _meant(name: str, targets: list[str]) -> bool:
    return any(name == target or name.endswith(f".{target}") for target in targets)
