"""How many sequences are decoded at once, as the memory for their keys and values allows, and in which way."""

import bisect
import math

import torch
from torch import Tensor

from rl.cache import Filling, SlotCache, run
from rl.model.attention import Grid, NotSharedError
from rl.model.head import attention_of
from rl.model.lean import LeanDecoder
from rl.model.memory import NoRoomError, spare_bytes
from rl.model.policy import Policy


class Slots:
    """How many sequences are worked on at once: as many as fit into memory, fewer once it has run out."""

    def __init__(self, policy: Policy, budget: float | None = None, most: int | None = None) -> None:
        """`budget`: bytes for keys, values and logits; None asks the device each time. `most`: sequences at once."""
        self._policy = policy
        self._budget = budget
        self._most = most
        plain, probed = _probe(policy, share=False)
        self._position = _position_bytes(probed, policy.device)
        self.share = _agrees(policy, plain)
        lean = LeanDecoder(policy.model) if self.share and LeanDecoder.takes(policy.model) else None
        self.lean = lean if lean is not None and _agrees(policy, plain, lean) else None  # the decoder to use

    def capacity(self, count: int, prompts: int, prompt: int, own: int) -> tuple[int, int]:
        """Rows and places for so many sequences behind so many prompts, of at most that many positions each."""
        room = spare_bytes(self._policy.device) if self._budget is None else self._budget
        most = count if self._most is None else min(count, self._most)

        def places(rows: int) -> int:
            return min(prompts, 2 * math.ceil(rows * prompts / count))

        def fits(rows: int) -> bool:
            positions = rows * (own if self.share else prompt + own) + places(rows) * prompt
            # of logits there are four: their softmax, its probabilities, and the sums of these
            return bool(positions * self._position + 16 * rows * self._policy.text.vocab_size <= room)

        rows = max(1, bisect.bisect_left(range(1, most + 1), True, key=lambda rows: not fits(rows)))
        return rows, places(rows)

    def ran_out(self, rows: int, positions: int, *, again: bool) -> None:
        """Memory has run out that was taken for so many rows of so many positions. Raises NoRoomError for one row with
        which it has run out `again`, because others may use the device as well."""
        if rows > 1:
            self._most = rows // 2
        elif again:
            raise NoRoomError(
                f"one sequence of {positions:,} tokens does not fit into the memory of {self._policy.device}: give a "
                "smaller sampling.max_tokens, a smaller policy.model, or policy.dtype bfloat16"
            )


def position_bytes(policy: Policy, device: torch.device) -> int:
    """What keys and values of one position take, in all layers, if the policy were on that device."""
    return _position_bytes(_probe(policy, share=False)[1], device)


def _position_bytes(cache: SlotCache, device: torch.device) -> int:
    kept = cache.rows.nbytes // cache.rows.positions
    growing = kept // max(1, len(cache.rows.layers))  # a layer is there twice while it grows
    return kept + growing if device.type == "cpu" else kept


@torch.inference_mode()
def _probe(policy: Policy, *, share: bool, lean: LeanDecoder | None = None) -> tuple[Tensor, SlotCache]:
    """Hidden states of a token behind a prompt of one, and the cache that they were computed with."""
    device = policy.device
    cache = SlotCache(1, 1, 1, 1, share=share)
    token, first = torch.full((1, 1), policy.end, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    none = first[:0]
    cache.fill(Filling(first, first, none, none, none[:, None]))
    run(policy, cache, token, torch.zeros_like(token), torch.ones((1, 1, 1, 1), dtype=torch.bool, device=device))
    cache.begin(first, first)
    cache.decode(first if share else first + 1, 1 if share else 2, Grid.of([0], 1, device), first + 1, 1)
    return run(policy, cache, token, torch.ones_like(token), cache.mask, lean), cache


def _agrees(policy: Policy, plain: Tensor, lean: LeanDecoder | None = None) -> bool:
    """Whether attention to a prompt's keys in their place is what the model does: by trying it."""
    if attention_of(policy.model) != "sdpa":
        return False  # it does more than scaled dot products, or one cannot know
    try:
        shared, cache = _probe(policy, share=True, lean=lean)
    except (NotSharedError, TypeError, ValueError, AttributeError, KeyError):
        return False
    tolerance = 1e-3 if plain.dtype in (torch.float32, torch.float64) else 5e-2
    close = bool((shared - plain).abs().max() <= tolerance * plain.abs().max())
    return close and cache.shared_layers == set(cache.rows.layers)
