"""The memory that sequences take while they are decoded: their keys and values, and how many there are at once.

Legend: B sequences.
"""

import torch
from torch import Tensor

from rl.model.head import hidden_states
from rl.model.memory import NoRoomError, spare_bytes
from rl.model.policy import Policy


class GroupCache:
    """Keys and values in one allocation per layer; the interface that transformers' attention layers call."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity  # positions
        self.used = 0
        self.keys: dict[int, Tensor] = {}  # layer: [B, heads, capacity, head size]
        self.values: dict[int, Tensor] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Append [B, heads, new, head size] and return everything so far."""
        if layer not in self.keys:
            shape = (*keys.shape[:2], self.capacity, keys.shape[3])
            self.keys[layer] = keys.new_empty(shape)
            self.values[layer] = values.new_empty((*shape[:3], values.shape[3]))
        end = self.used + keys.shape[2]
        self.keys[layer][:, :, self.used : end] = keys
        self.values[layer][:, :, self.used : end] = values
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def get_seq_length(self, *_: object) -> int:
        return self.used

    @property
    def nbytes(self) -> int:
        return sum(kept.nbytes for kept in (*self.keys.values(), *self.values.values()))

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order (a row may come several times)."""
        for layer in self.keys:
            self.keys[layer] = self.keys[layer].index_select(0, rows)
            self.values[layer] = self.values[layer].index_select(0, rows)


class Slots:
    """How many sequences are worked on at once: as many as fit into memory, fewer once it has run out."""

    def __init__(self, policy: Policy, budget: float | None = None) -> None:
        """`budget`: bytes for keys, values and logits; None asks the device each time."""
        self._policy = policy
        self._budget = budget
        self._most: int | None = None
        self._position = _position_bytes(policy)

    def at_once(self, positions: int) -> int:
        """How many sequences of so many positions."""
        room = spare_bytes(self._policy.device) if self._budget is None else self._budget
        # of logits there are four: their softmax, its probabilities, and the sums of these
        fitting = max(1, int(room / (positions * self._position + 16 * self._policy.text.vocab_size)))
        return fitting if self._most is None else min(fitting, self._most)

    def ran_out(self, count: int, positions: int) -> None:
        """Memory has run out with so many sequences. Raises NoRoomError for one."""
        if count == 1:
            raise NoRoomError(
                f"one sequence of {positions:,} tokens does not fit into the memory of {self._policy.device}: give a "
                "smaller sampling.max_tokens, a smaller policy.model, or policy.dtype bfloat16"
            )
        self._most = count // 2


@torch.inference_mode()
def _position_bytes(policy: Policy) -> int:
    """What keys and values of one position take, in all layers."""
    cache = GroupCache(1)
    token = torch.full((1, 1), policy.end, device=policy.device)
    hidden_states(
        policy.model,
        mask=torch.ones((1, 1, 1, 1), dtype=torch.bool, device=policy.device),
        input_ids=token,
        position_ids=torch.zeros_like(token),
        past_key_values=cache,
        use_cache=True,
    )
    return cache.nbytes
