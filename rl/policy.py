"""A policy: a causal language model with its tokenizer, its device, and the prompt that it is given.

Legend: B sequences, L positions, N selected positions, H hidden size, V vocabulary.
"""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from jinja2 import TemplateError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from rl.config import PolicyConfig
from rl.records import Briefing

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

    @property
    def window(self) -> int | None:
        """How many positions back its attention reaches in some layer, None if all the way. Sampler and learner lay out
        their own masks, which know no window: they must not be longer than it."""
        kinds = getattr(self.model.config, "layer_types", None)
        slides = kinds is None or "sliding_attention" in kinds
        size = getattr(self.model.config, "sliding_window", None)
        return int(size) if slides and size else None

    @property
    def end(self) -> int:
        """The token id that ends a completion."""
        return int(self.tokenizer.eos_token_id)

    def prompt_tokens(self, problem: str, briefing: Briefing | None = None) -> list[int]:
        """Token ids of the prompt: system line, worked examples and problem through the model's chat template, or the
        bare problem and a line break for a model without one."""
        if self.tokenizer.chat_template is None:
            return list(self.tokenizer(problem + "\n", add_special_tokens=False)["input_ids"])
        system, examples = (briefing.system, briefing.examples) if briefing else ("", ())
        turns = []
        for question, answer in examples:
            turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        turns.append({"role": "user", "content": problem})
        render = partial(
            self.tokenizer.apply_chat_template, add_generation_prompt=True, tokenize=False, enable_thinking=False
        )
        try:
            rendered = render([{"role": "system", "content": system}, *turns] if system else turns)
        except TemplateError:  # some templates know no system role
            if not system:
                raise
            first = f"{system}\n\n{turns[0]['content']}"
            rendered = render([{"role": "user", "content": first}, *turns[1:]])
        return list(self.tokenizer(rendered, add_special_tokens=False)["input_ids"])

    def weights(self) -> dict[str, Tensor]:
        """The parameters and buffers by name, those that are tied once."""
        tied = tied_names(self.model)
        return {name: value.detach() for name, value in self.model.state_dict().items() if name not in tied}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Overwrite the parameters in place with weights of the same names.

        Raises:
            ValueError: names or shapes differ from the model's; nothing was changed then.
        """
        parameters = self.model.state_dict(keep_vars=True)
        for name, value in weights.items():
            if name not in parameters or parameters[name].shape != value.shape:
                raise ValueError(f"tensor {name} does not fit the model in memory")
        if left := set(parameters) - tied_names(self.model) - set(weights):
            raise ValueError(f"no weights for {min(left)} and {len(left) - 1} more")
        with torch.no_grad():
            for name, value in weights.items():
                parameters[name].copy_(value)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """The ``model*.safetensors`` of a folder in Hugging Face layout."""
    files = sorted(folder.glob("model*.safetensors"))
    return {name: value for file in files for name, value in load_file(file).items()}


def copied_weights(weights: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """A copy on the CPU that shares no memory; floating point in ``dtype``."""
    return {
        name: value.detach().to("cpu", dtype if value.is_floating_point() else None, copy=True).contiguous()
        for name, value in weights.items()
    }


def choose_device(wanted: str) -> torch.device:
    """The device named, or for ``auto`` CUDA, else MPS, else CPU."""
    if wanted != "auto":
        return torch.device(wanted)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def choose_dtype(wanted: str, device: torch.device) -> torch.dtype:
    """The dtype named, or for ``auto`` bfloat16 on CUDA and float32 elsewhere."""
    if wanted != "auto":
        return DTYPES[wanted]
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def load_policy(
    path: str, config: PolicyConfig, *, master: bool = False, weights: Mapping[str, Tensor] | None = None
) -> Policy:
    """Load a model and its tokenizer from a hub id or a folder.

    Args:
        path: hub id or folder; ``config`` says only where and how to compute.
        master: keep the parameters in float32 whatever the arithmetic's dtype, as a learner needs them.
        weights: take these instead of those in the folder.

    Raises:
        UnknownModelError: transformers cannot load it, or its output is not a linear head on its hidden states.
    """
    device = choose_device(config.device)
    dtype = choose_dtype(config.dtype, device)
    load: Any = AutoModelForCausalLM.from_pretrained  # its type leaves out that it can return a pair
    try:
        # neither code nor pickles of a model run here: a folder may come from anywhere
        tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        kept = torch.float32 if master else dtype
        given: dict[str, Any] = {"trust_remote_code": False, "use_safetensors": True}
        if weights is not None:
            # by its class, which takes weights from memory and draws no random ones first
            settings = AutoConfig.from_pretrained(path, trust_remote_code=False)
            load = getattr(transformers, settings.architectures[0]).from_pretrained
            given = {"config": settings, "state_dict": copied_weights(weights, kept)}
        model, loading = load(
            None if weights is not None else path,
            dtype=kept,
            attn_implementation="sdpa",
            output_loading_info=True,
            **given,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UnknownModelError(f"policy.model {path!r} cannot be loaded: {_reason(error)}") from error
    if missing := sorted(loading["missing_keys"]):
        # transformers fills them with random numbers and goes on
        raise UnknownModelError(f"policy.model {path!r}: no weights for {missing[0]} and {len(missing) - 1} more")
    if tokenizer.eos_token_id is None:
        raise UnknownModelError(f"policy.model {path!r}: its tokenizer has no end-of-sequence token")
    model.to(device).eval()
    policy = Policy(model, tokenizer, device, dtype)
    check_head(policy, path)
    return policy


def _reason(error: Exception) -> str:
    """One line, with the remedy where transformers would suggest what is not done here."""
    words = str(error).strip()
    if "custom code" in words or "trust_remote_code" in words:
        return "it needs code of its own, which is never run here; take a model that transformers knows"
    if "no file named model.safetensors" in words or "safetensors variant" in words:
        return (
            "it has no model.safetensors, and pickled weights (pytorch_model.bin) are never read, because they can run "
            "code; convert them where you trust them, with save_pretrained"
        )
    return words.splitlines()[0] if words else type(error).__name__


def save_policy(policy: Policy, folder: Path, dtype: torch.dtype | None = None) -> None:
    """Write it in Hugging Face layout: config, tokenizer, ``model.safetensors`` (floating point in ``dtype``)."""
    save_files(policy, folder)
    save_file(copied_weights(policy.weights(), dtype), folder / "model.safetensors", metadata={"format": "pt"})


def save_files(policy: Policy, folder: Path) -> None:
    """Write what Hugging Face layout has beside the weights: config and tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    config = deepcopy(policy.model.config)
    config.architectures = [type(policy.model).__name__]  # a model that was built in code does not say
    config.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def tied_names(model: nn.Module) -> set[str]:
    """Names in the state dict that share their storage with an earlier name (tied embeddings)."""
    seen: set[tuple[int, torch.Size]] = set()
    tied = set()
    for name, value in model.state_dict(keep_vars=True).items():
        key = (value.data_ptr(), value.shape)
        if key in seen:
            tied.add(name)
        seen.add(key)
    return tied


def hidden_states(model: PreTrainedModel, **inputs: Any) -> Tensor:
    """[B, L, H]: the decoder's last hidden states, before the head."""
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    states: Tensor = decoder(**inputs).last_hidden_state
    return states


def head_logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """[N, V] in float32 from hidden states [N, H]."""
    head: nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    logits: Tensor = head(hidden)
    return logits.float()


@torch.no_grad()
def check_head(policy: Policy, path: str) -> None:
    """Sampler and learner take the head apart from the decoder, to compute logits only where they are needed: see
    that the two together are the model (some models scale or cap their logits in between).

    Raises:
        UnknownModelError: they are not, or they are not finite.
    """
    tokens = torch.tensor([[policy.end, policy.end]], device=policy.device)
    whole = policy.model(input_ids=tokens, use_cache=False).logits.float()
    parts = head_logits(policy.model, hidden_states(policy.model, input_ids=tokens, use_cache=False))
    if not torch.isfinite(whole).all():
        raise UnknownModelError(f"policy.model {path!r}: its logits are not finite: broken weights, or an overflow")
    if not torch.allclose(whole, parts, atol=1e-2, rtol=1e-2):
        raise UnknownModelError(f"policy.model {path!r}: its logits are more than a linear head on its hidden states")
