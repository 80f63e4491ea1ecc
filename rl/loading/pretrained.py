"""Loading by transformers, of models of every kind."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig

from rl.model.head import attention_for
from rl.model.memory import NoRoomError, return_freed, room_for
from rl.model.policy import LARGE, UnknownModelError
from rl.model.unloadable import reason


@contextmanager
def unloadable(what: str) -> Iterator[None]:
    """Raise UnknownModelError in one line for whatever goes wrong inside."""
    try:
        yield
    except (UnknownModelError, NoRoomError):  # say themselves what is wrong
        raise
    except Exception as error:
        raise UnknownModelError(f"{what}: {reason(error)}") from error


def pretrained(
    load: Any,
    path: str,
    settings: PretrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    helps: Sequence[str] = (),
    weights: dict[str, Tensor] | None = None,
) -> tuple[Any, list[str]]:
    """The model that ``load``, a `from_pretrained`, makes of a hub id or a folder, or of these weights, and the names
    of those that it lacks. It is in the machine's memory and meant for the device. Raises NoRoomError, and what
    transformers raises, which may be anything."""
    with room_for(f"policy.model {path!r}", torch.device("cpu"), helps):
        model, found = load(
            path if weights is None else None,
            config=settings,
            dtype=dtype,
            attn_implementation=attention_for(settings),
            output_loading_info=True,
            # neither code nor pickles of a model run here: a folder may come from anywhere
            trust_remote_code=False,
            use_safetensors=True,
            state_dict=weights,
        )
    if device.type == "cpu" and model.num_parameters() >= LARGE:
        return_freed()
    return model, sorted(found["missing_keys"])
