"""A model in a folder, as transformers saves it."""

from collections.abc import Callable
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.config import PolicyConfig

Build = Callable[..., PreTrainedModel]
CPU = PolicyConfig(device="cpu")
TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)
TOKENS = torch.tensor([[5, 90, 300, 17, 44]])


def saved(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)
