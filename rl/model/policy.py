"""A policy: a causal language model with its tokenizer, its device, and the prompt that it is given."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME

from rl.model import processor
from rl.model.lora import ADAPTERS, Base, adapters_of, base_weights, save_lora
from rl.model.parking import ModelMemory
from rl.model.prompting import Tool, prompt_tokens, turn_end
from rl.model.rounding import Types, all_in, rounded
from rl.model.tied import named_weights
from rl.records import Instructions

# parameters: what a smaller model multiplies takes less time on a CPU than all else
LARGE = 50_000_000
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class UnknownModelError(ValueError):
    """A model that transformers cannot load, or that this project cannot drive."""


@dataclass(frozen=True)
class Policy:
    """A model in memory, ready to sample from or to train."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    device: torch.device
    dtype: torch.dtype  # of the arithmetic; a learner's parameters stay float32
    base: Base | None = None  # of adapters, which alone are trained then; None without them

    @property
    def text(self) -> PretrainedConfig:
        """The language model's part of the configuration; a model that also sees or hears has others."""
        return self.model.config.get_text_config()

    @cached_property
    def memory(self) -> ModelMemory:
        """What it holds; with an optimizer, ask that which has both."""
        return ModelMemory(self.model, self.device)

    @property
    def outputs(self) -> int:
        """Numbers that its head makes of a hidden state."""
        return int(self.text.vocab_size)

    @property
    def window(self) -> int | None:
        """How many positions back attention reaches in the most limited layer, None if all the way. Sampler and learner
        lay out masks without a window, so no sequence may be longer."""
        kinds = getattr(self.text, "layer_types", None)
        slides = kinds is None or {"sliding_attention", "chunked_attention"} & set(kinds)
        sizes = [getattr(self.text, name, None) for name in ("sliding_window", "attention_chunk_size")]
        return min((int(size) for size in sizes if slides and isinstance(size, int) and size > 0), default=None)

    @property
    def positions(self) -> int | None:
        """How many tokens the model can tell apart by position, None without a limit. With `longrope` (Phi-3) those of
        its first training: beyond them the rotation of every row depends on the longest row of the batch."""
        rope = getattr(self.text, "rope_parameters", None) or {}
        own = "original_" if rope.get("rope_type") == "longrope" else ""
        size = getattr(self.text, f"{own}max_position_embeddings", None) or rope.get(f"{own}max_position_embeddings")
        return int(size) if isinstance(size, int) and size > 0 else None

    @property
    def end(self) -> int:
        """The token id that a demonstration is ended with: the tokenizer's, else the model's first."""
        own = self.tokenizer.eos_token_id
        return int(own) if own is not None else self.ends[0]

    @property
    def ends(self) -> tuple[int, ...]:
        """Every token id that ends a completion: the tokenizer's, all of the model's generation settings (a chat model
        has one for the end of its turn and one for that of a text), and the chat template's."""
        found = [*self._named_ends, *([self._turn_end] if self._turn_end is not None else [])]
        return tuple(dict.fromkeys(found))

    @property
    def unnamed_end(self) -> str | None:
        """The token that ends a turn in the chat template, where neither tokenizer nor generation settings name it."""
        end = self._turn_end
        return None if end is None or end in self._named_ends else str(self.tokenizer.convert_ids_to_tokens(end))

    @property
    def _named_ends(self) -> list[int]:
        named = getattr(self.model.generation_config, "eos_token_id", None)
        listed = named if isinstance(named, (list, tuple)) else [named]
        return [int(token) for token in (self.tokenizer.eos_token_id, *listed) if token is not None]

    @cached_property
    def _turn_end(self) -> int | None:
        return turn_end(self.tokenizer)

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Forward passes in the policy's dtype, whatever its parameters are kept in."""
        with torch.autocast(self.device.type, self.dtype) if self.dtype != torch.float32 else nullcontext():
            yield

    @property
    def reach(self) -> tuple[int, str] | None:
        """How many tokens of a sequence the model can attend to, and what sets the limit; None without one."""
        limits = (self.window, "attention window"), (self.positions, "range of positions")
        return min(((limit, what) for limit, what in limits if limit is not None), default=None)

    def check_room(self, prompt: int, max_tokens: int) -> None:
        """Raise ValueError where that many tokens of prompt and completion are more than the model can attend to."""
        limit, what = self.reach or (math.inf, "")
        if limit < prompt + max_tokens:
            tokens = f"{prompt} tokens of prompt and {max_tokens} of completion" if prompt else f"{max_tokens} tokens"
            room = f"; {limit - prompt} are left for the completion" if 0 < prompt < limit else ""
            raise ValueError(f"sampling.max_tokens: {tokens} reach beyond the model's {what} of {limit}{room}")

    def prompt_tokens(
        self, problem: str, instructions: Instructions | None = None, tools: Sequence[Tool] = (), opening: str = ""
    ) -> list[int]:
        """Token ids of the prompt: see :mod:`rl.model.prompting`."""
        return prompt_tokens(self.tokenizer, problem, instructions, tools, opening)

    def weights(self) -> dict[str, Tensor]:
        """The parameters and buffers by name, those that are tied once; of adapters these alone, by peft's names."""
        return {name: value.detach() for name, value in self._parameters.items()}

    @property
    def _parameters(self) -> Mapping[str, Tensor]:
        return named_weights(self.model) if self.base is None else adapters_of(self.model)

    def types(self, dtype: torch.dtype) -> Types:
        """Those of `weights` in a copy that is rounded to ``dtype``."""
        return rounded(self.model, dtype) if self.base is None else all_in(dtype)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite the parameters in place with `weights` of the same names.

        Raises:
            ValueError: names or shapes differ from the model's; nothing was changed then.
        """
        parameters = self._parameters
        for name, value in weights.items():
            if name not in parameters or parameters[name].shape != value.shape:
                raise ValueError(f"tensor {name} does not fit the model in memory")
        if left := set(parameters) - set(weights):
            raise ValueError(f"no weights for {min(left)} and {len(left) - 1} more")
        with torch.no_grad():
            for name, value in weights.items():
                parameters[name].copy_(value)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The ``model*.safetensors`` of a folder in Hugging Face layout, or its adapters."""
    files = sorted(folder.glob("model*.safetensors")) or folder.glob(ADAPTERS)
    return {name: value for file in files for name, value in load_file(file).items()}


def copied_weights(weights: Mapping[str, Tensor], types: Types | None = None) -> dict[str, Tensor]:
    """A copy on the CPU that shares no memory; floating point in these types, or its own."""

    def type_of(name: str, value: Tensor) -> torch.dtype:
        return types(name) if types is not None and value.is_floating_point() else value.dtype

    return {
        name: value.detach().to("cpu", type_of(name, value), copy=True).contiguous() for name, value in weights.items()
    }


def choose_device(wanted: str) -> torch.device:
    """The device named, or for ``auto`` CUDA, else MPS, else CPU."""
    if wanted != "auto":
        return torch.device(wanted)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def dtype_name(dtype: torch.dtype) -> str:
    """As `policy.dtype` names it."""
    return str(dtype).removeprefix("torch.")


def own_dtype(settings: PretrainedConfig) -> torch.dtype:
    """The type of a model's weights by its configuration; float32 where that names none that is computed in."""
    named = settings.dtype or settings.get_text_config().dtype
    return named if isinstance(named, torch.dtype) and named in DTYPES.values() else torch.float32


def choose_dtype(wanted: str, device: torch.device, parameters: Callable[[], int]) -> torch.dtype:
    """The dtype named, or for ``auto`` bfloat16 on CUDA, and on a CPU for a model of many ``parameters`` where the
    processor multiplies it faster; else float32."""
    if wanted != "auto":
        return DTYPES[wanted]
    if device.type == "cpu":
        return torch.bfloat16 if processor.fast_at_bfloat16() and parameters() >= LARGE else torch.float32
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def save_policy(policy: Policy, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write Hugging Face layout: config, tokenizer, ``model.safetensors`` (rounded to ``dtype``). Of adapters
    peft's, without the model that they belong to."""
    save_files(policy, folder, dtype)
    name = "model.safetensors" if policy.base is None else ADAPTERS
    types = None if dtype is None else policy.types(dtype)
    save_file(copied_weights(policy.weights(), types), folder / name, metadata={"format": "pt"})


def save_base(policy: Policy, folder: Path, dtype: torch.dtype) -> None:
    """Write the model of a policy in Hugging Face layout, without adapters; its weights are rounded to ``dtype`` as
    transformers rounds them, which leaves some wide."""
    save_config(policy, folder, dtype)
    save_tokenizer(policy, folder)
    save_file(base_weights(policy.model, dtype), folder / "model.safetensors", metadata={"format": "pt"})


def save_files(policy: Policy, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write what `save_policy` does beside the weights."""
    if policy.base is None:
        save_config(policy, folder, dtype)
    else:
        folder.mkdir(parents=True, exist_ok=True)
        save_lora(policy.model, policy.base, folder)
    save_tokenizer(policy, folder)


def save_config(policy: Policy, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write the configuration of the model, of weights in ``dtype``."""
    folder.mkdir(parents=True, exist_ok=True)
    config = deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]  # a model that was built in code does not say
    if dtype is not None:
        config.dtype = dtype  # a learner's parameters may be of another
    config.save_pretrained(folder)


def save_tokenizer(policy: Policy, folder: Path) -> None:
    """Write the tokenizer, and generation settings, which name all end tokens: other programs do not look into the chat
    template for them."""
    policy.tokenizer.save_pretrained(folder)
    if policy.model.generation_config is not None:
        settings = deepcopy(policy.model.generation_config)
        settings.eos_token_id = list(policy.ends) if len(policy.ends) > 1 else policy.ends[0]
        # the rest as it was loaded: save_pretrained refuses what it would only warn of when loading
        settings.to_json_file(folder / GENERATION_CONFIG_NAME)
