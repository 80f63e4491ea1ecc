"""The way in which tokens of a policy are decoded on its device, as trials of it have shown."""

import logging
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from rl.compiler import NoCompilerError
from rl.model.attention import Grid, NotSharedError
from rl.model.cpu_kernels import CpuKernels
from rl.model.cpu_linear import CpuLinear, pays
from rl.model.head import attention_of
from rl.model.lean import Kernels, LeanDecoder
from rl.model.memory import is_out_of_memory
from rl.model.policy import Policy
from rl.model.tolerances import states_apart, states_tolerance
from rl.model.unloadable import reason
from rl.sampling.cache import DecodePass, SlotCache, decoded
from rl.sampling.choice import Choice
from rl.sampling.kernel_trial import kernel_refusal
from rl.sampling.prefill import Prefill, prefilled

logger = logging.getLogger(__name__)
T = TypeVar("T")

PROBED = 3  # tokens of the prompt by which decoding is tried


class Backend:
    """Of one policy: what its model does itself, or faster what was found to be the same."""

    def __init__(self, policy: Policy, strides: bool | None = None) -> None:
        """`strides`: decode in steps of a fixed shape, see `rl.sampling.strides`; None does on CUDA."""
        device = policy.device.type
        self.strides = device == "cuda" if strides is None else strides
        self.graphs = device == "cuda"  # whether strides are captured; False once that is not possible
        self.grows = device == "cpu" and not self.strides  # keys and values, see `KeyValues`
        plain, probed = _probe(policy, share=False)
        self.position_bytes = _position_bytes(probed.cache, grows=self.grows)
        self.share = _agrees(policy, plain)  # whether a prompt's keys stay in their place
        # the decoder to use, if not the model's
        self.lean = _lean(policy, plain) if self.share and LeanDecoder.takes(policy.model) else None
        self.choice = _had(Choice, "none is drawn by compiled code") if device == "cpu" else None

    def follow(self) -> None:
        """Make again what was made of the weights, if these were written to."""
        if self.lean is not None:
            self.lean.follow()


def position_bytes(policy: Policy, device: torch.device) -> int:
    """What keys and values of one position take, in all layers, if the policy were on that device."""
    return _position_bytes(_probe(policy, share=False)[1].cache, grows=device.type == "cpu")


def _position_bytes(cache: SlotCache, *, grows: bool) -> int:
    kept = cache.rows.nbytes // cache.rows.positions
    growing = kept // max(1, len(cache.rows.layers))  # a layer is there twice while it grows
    return kept + growing if grows else kept


@torch.inference_mode()
def _probe(policy: Policy, *, share: bool, lean: LeanDecoder | None = None) -> tuple[Tensor, DecodePass]:
    """Hidden states of a token behind a prompt of others, and the pass that they are of. Equal tokens would have equal
    values, of which every attention makes the same."""
    device = policy.device
    cache = SlotCache(1, 1, 1, PROBED, share=share, grows=False)
    token = policy.text.vocab_size // 2  # there, none is special
    list(prefilled(policy, cache, [Prefill(tuple(range(token, token + PROBED)), 0)], lean))
    first = torch.zeros(1, dtype=torch.int64, device=device)
    cache.begin(first, first)
    behind = first + PROBED
    at, length = (first, 1) if share else (behind, PROBED + 1)
    step = DecodePass(cache, at, length, Grid.of([0], 1, device), behind, PROBED)
    return decoded(policy, step, first[None] + token + PROBED, behind, lean), step


def _lean(policy: Policy, plain: Tensor) -> LeanDecoder | None:
    """A decoder of the model's own results, with kernels for its attention, if they can be had."""
    lean = LeanDecoder(policy.model)
    if policy.device.type == "cuda" or (policy.device.type == "cpu" and plain.dtype in CpuKernels.DTYPES):
        try:
            kernels = _kernels(policy.device, *lean.heads)
            found = LeanDecoder(policy.model, kernels)
            why = kernel_refusal(kernels, *lean.heads, plain.dtype, policy.device)
            if not why and _agrees(policy, plain, found):
                return found
            why = why or "with them the model's results are others"
        except Exception as error:  # no Triton, no compiler of C that they need, a device that it does not know
            if is_out_of_memory(error):
                raise
            why = reason(error)
            _slower("no kernels for its attention", why, error)
        else:
            _slower("no kernels for its attention", why)
    return lean if _agrees(policy, plain, lean) else None


def _had(make: Callable[[], T], without: str) -> T | None:
    """What is compiled, if it can be had."""
    try:
        return make()
    except (NoCompilerError, OSError, ValueError) as error:
        _slower(without, reason(error), error)
        return None


def _slower(what: str, why: str, error: Exception | None = None) -> None:
    """Say it; of a compiler, which many do not have, `rlvf doctor` does."""
    level = logging.INFO if isinstance(error, NoCompilerError) else logging.WARNING
    logger.log(level, "decoding is slower than it could be here: %s, because %s", what, why)


def _kernels(device: torch.device, queries: int, keys: int, size: int) -> Kernels:
    if device.type == "cpu":
        linear = _had(CpuLinear, "its products are PyTorch's") if pays() else None
        return CpuKernels(size, queries // keys, linear)
    from rl.model import kernels  # Triton is there on CUDA alone

    return kernels


def _agrees(policy: Policy, plain: Tensor, lean: LeanDecoder | None = None) -> bool:
    """Whether attention to a prompt's keys in their place is what the model does: by trying it."""
    if attention_of(policy.model) != "sdpa":
        return False  # it does more than scaled dot products, or one cannot know
    try:
        shared, step = _probe(policy, share=True, lean=lean)
    except (NotSharedError, TypeError, ValueError, AttributeError, KeyError):
        return False
    close = states_apart(shared, plain) <= states_tolerance(plain.dtype)
    return close and step.shared_layers == set(step.cache.rows.layers)
