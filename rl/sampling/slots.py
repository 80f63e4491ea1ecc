"""How many sequences are decoded at once, as the memory for their keys and values allows."""

import bisect
import logging
import math

from rl.model.memory import NoRoomError, spare_bytes
from rl.model.policy import Policy
from rl.sampling.backend import Backend

logger = logging.getLogger(__name__)

DRAWN_BYTES = 16  # of a logit while a token is drawn: it, the softmax, its probabilities, and the sums of these
CALM = 16  # leases without an error, after which twice as many sequences are tried again


class Slots:
    """How many sequences a policy's backend works on at once: as many as fit into memory, fewer once it has run out."""

    def __init__(
        self, policy: Policy, budget: float | None = None, most: int | None = None, strides: bool | None = None
    ) -> None:
        """`budget`: bytes for keys, values and logits; None asks the device each time. `most`: sequences at once."""
        self.backend = Backend(policy, strides)
        self._policy = policy
        self._budget = budget
        self._most = most
        self._limit: int | None = None  # sequences at once, since memory has run out
        self._calm = 0  # leases since then

    def capacity(self, count: int, prompts: int, prompt: int, own: int) -> tuple[int, int]:
        """Rows and places for so many sequences behind so many prompts, of at most that many positions each."""
        room = spare_bytes(self._policy.device) if self._budget is None else self._budget
        most = min(each for each in (count, self._most, self._limit) if each is not None)

        def places(rows: int) -> int:
            return min(prompts, 2 * math.ceil(rows * prompts / count))

        def fits(rows: int) -> bool:
            positions = rows * (own if self.backend.share else prompt + own) + places(rows) * prompt
            logits = rows * self._policy.text.vocab_size
            return bool(positions * self.backend.position_bytes + DRAWN_BYTES * logits <= room)

        rows = max(1, bisect.bisect_left(range(1, most + 1), True, key=lambda rows: not fits(rows)))
        return rows, places(rows)

    def begin_lease(self) -> None:
        """Another lease begins."""
        self._calm += 1
        if self._limit is not None and self._calm > CALM:  # others may have used the memory for a while
            self._limit, self._calm = 2 * self._limit, 0

    def ran_out(self, rows: int, positions: int, *, again: bool) -> None:
        """Memory has run out that was taken for so many rows of so many positions: half as many are worked on from now
        on, and twice as many again after a while. Raises NoRoomError for one row with which it has run out `again`,
        because others may use the device as well."""
        if rows > 1:
            if self._limit is None or self._calm:  # once for all the halvings of a lease
                logger.warning("memory has run out for %d completions at once: fewer from now on", rows)
            self._limit, self._calm = rows // 2, 0
        elif again:
            raise NoRoomError(
                f"one sequence of {positions:,} tokens does not fit into the memory of {self._policy.device}: give a "
                "smaller sampling.max_tokens, or to a new run a smaller policy.model or policy.dtype bfloat16"
            )
