"""Reward models: a decoder with a head of one number, whose output at a completion's last token is its reward.

They are what transformers calls a model for sequence classification with one label, and TRL a reward model, so that one
of either kind is taken, and made.
"""

import weakref
from types import MethodType

import torch
import transformers
from torch import nn
from transformers import PreTrainedModel

from rl.config import PolicyConfig
from rl.loading.pretrained import pretrained, unloadable
from rl.model.memory import room_for
from rl.model.policy import Policy, UnknownModelError, choose_device, choose_dtype, own_dtype
from rl.model.skeleton import on_meta, settings_of
from rl.model.tokenizer import read_tokenizer

HEAD = "score"  # as transformers calls it


def load_reward_model(path: str, config: PolicyConfig, *, master: bool = False, fresh: bool = False) -> Policy:
    """Load a reward model and its tokenizer from a hub id or a folder; ``config`` says where and how to compute.

    Args:
        master: keep parameters in float32 whatever the arithmetic's dtype, as a learner needs it.
        fresh: the folder is a causal language model, whose decoder gets a head that is zero: every reward is equal.

    Raises:
        UnknownModelError: transformers cannot load it, or it is no reward model.
        NoRoomError: it does not fit into the device's memory.
    """
    device = choose_device(config.device)
    with unloadable(f"policy.model {path!r} cannot be loaded as a reward model"):
        tokenizer = read_tokenizer(path)
        settings = settings_of(path, num_labels=1)
        dtype = choose_dtype(config.dtype, device, lambda: on_meta(settings).num_parameters())
        kept = torch.promote_types(torch.float32 if master else own_dtype(settings), dtype)
        load = transformers.AutoModelForSequenceClassification.from_pretrained
        model, missing = pretrained(load, path, settings, kept, device)
    missing = [name for name in missing if not (fresh and name.startswith(HEAD))]
    if missing:
        what = "is no reward model: it has" if missing[0].startswith(HEAD) else "has"
        raise UnknownModelError(f"policy.model {path!r} {what} no weights for {missing[0]}")
    with room_for(f"policy.model {path!r}", device):
        model.to(device)
    return _with_head(Policy(model, tokenizer, device, dtype), path, fresh=fresh)


def _with_head(policy: Policy, path: str, *, fresh: bool) -> Policy:
    """The loaded model with its head where learner and memory look for a model's."""
    model = policy.model
    head = getattr(model, HEAD, None)
    if type(head) is not nn.Linear or head.out_features != 1 or head.bias is not None:
        raise UnknownModelError(f"policy.model {path!r} ({type(model).__name__}): its head is not one row of weights")
    if fresh:
        with torch.no_grad():
            head.weight.zero_()
    model.generation_config = None  # which a language model has, to be saved with it
    # not a hold on itself, with which its memory would wait for a garbage collection
    model.get_output_embeddings = MethodType(_head, weakref.proxy(model))
    model.eval()
    return policy


def _head(model: PreTrainedModel) -> nn.Module:
    head: nn.Module = getattr(model, HEAD)
    return head
