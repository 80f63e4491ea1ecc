"""The engine: sequences in slots. Finished ones leave, waiting ones enter, and each draws what it would draw alone.

A step draws one token for every sequence that runs. Those that enter are prefilled first, a prompt once for all of its
sequences; the others give their last token to the model. With `Backend.strides` a step draws several tokens, or one of
those that enter. So a token's log-prob is that of the weights at its step, and sequences may be taken back between two
steps and gone on with here or elsewhere. The weights may be written to between two steps (`swapped`): what was drawn
stays, with the version that drew it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rl.model.memory import is_out_of_memory, release
from rl.model.policy import Policy
from rl.sampling.decoding import StopStrings
from rl.sampling.prefix_cache import PrefixCache
from rl.sampling.rows import Rows
from rl.sampling.scheduling import Draw, Scheduler
from rl.sampling.slots import Slots
from rl.sampling.strides import STRIDE, Strides


def no_swap() -> None:
    """The weights stay."""


def to_the_end() -> bool:
    """No completion is given up before it is over."""
    return False


@dataclass(frozen=True)
class Hooks:
    """What is called between two steps of an engine."""

    between_tokens: Callable[[], None] = lambda: None  # before each; what it raises ends the sampling
    # there too: it may overwrite the weights, and returns their version then; what is drawn by then stays
    fresh: Callable[[], int | None] = no_swap
    kv_versions: int = 0  # how many versions older than these keys and values may be, before they are computed again
    # after each that has drawn tokens: where it says so, completions stay as they are, over or not
    stop_now: Callable[[], bool] = to_the_end


class Engine:
    """Draws completions of one policy."""

    def __init__(
        self,
        policy: Policy,
        slots: Slots | None = None,
        *,
        temperature: float = 1.0,
        ends: Sequence[int] = (),
        stop: Sequence[str] = (),
        version: int = 0,
        kept: PrefixCache | None = None,
    ) -> None:
        """`ends`: token ids that end a completion, as the strings `stop` do. `version`: of the policy's weights.
        `kept`: where keys and values of those that have reached an end are found by an engine that goes on with them.
        """
        self.policy = policy
        self.version = version
        self.slots = slots or Slots(policy)
        self.slots.begin_lease()
        self.temperature = temperature
        self.ends = torch.tensor(ends, dtype=torch.int64, device=policy.device)
        self.stops = StopStrings(policy, stop) if stop else None
        self.schedule = Scheduler()
        self._rows: Rows | None = None
        self._strides: Strides | None = None  # of those rows
        self._over: list[Draw] = []
        self._added = 0
        self._added_since = False  # memory was taken
        self._tried_alone = False  # memory has run out with one row since the last completion
        self._parameters = list(policy.model.parameters())
        self._weights = self._written()
        self._kept = kept
        if kept is not None:
            kept.follow(self._weights, policy.device)
        self._versions = [version]  # the newest that had the same weights, by `PromptSlot.weights`
        self.slots.backend.follow()

    # -- what is drawn

    def add(self, prompt: Sequence[int], limit: int, noise: np.ndarray | None = None) -> Draw:
        """A completion of at most `limit` tokens, by uniform numbers [limit]; None takes the most likely tokens."""
        if noise is not None and len(noise) != limit:
            raise ValueError(f"{len(noise)} uniform numbers for {limit} tokens")
        draw = Draw(tuple(prompt), limit, noise)
        self.go_on(draw)
        return draw

    def go_on(self, draw: Draw, given: Sequence[int] | np.ndarray = ()) -> None:
        """Take a completion up where it was left, with `given` tokens behind its own, which count against its limit.

        Raises:
            ValueError: it is over, or no token would be left to draw.
        """
        if len(given):
            draw.give(given)
        if draw.ended or len(draw.tokens) >= draw.limit:
            raise ValueError(f"a completion that is over: {len(draw.tokens)} of {draw.limit} tokens")
        draw.by(self.version, len(draw.tokens))
        draw.number = self._added
        self._added += 1
        self._added_since = True
        self.schedule.waiting.append(draw)

    def finished(self) -> list[Draw]:
        """Those that are over since the last call."""
        found, self._over = self._over, []
        return found

    def take_back(self) -> list[Draw]:
        """All that are not over, with the tokens so far; the engine forgets them."""
        self._halt()
        found = list(self.schedule.waiting)
        self.schedule.waiting.clear()
        return found

    @property
    def busy(self) -> bool:
        """Whether there is anything left to draw."""
        return bool(self.schedule.rows or self.schedule.waiting)

    def run(self, hooks: Hooks = Hooks()) -> None:  # it is frozen
        """Draw until all completions are over, or ``hooks`` stop it.

        Raises:
            NoRoomError: the device has no memory for one sequence.
        """
        while self.busy:
            hooks.between_tokens()
            if (newer := hooks.fresh()) is not None:
                self.swapped(newer, hooks.kv_versions)
            if self.step() and hooks.stop_now():
                self.take_back()

    # -- its weights

    @torch.inference_mode()
    def swapped(self, version: int, kv_versions: int) -> None:
        """The policy's weights are those of `version` from the next token on. Keys and values that are more than
        `kv_versions` older are computed again: all, once one of them is. Where no weight was written to they are of
        this version too."""
        self._follow()
        self._versions[-1] = self.version = version
        schedule = self.schedule
        if self._rows is not None:
            for draw, count in zip(schedule.rows, self._rows.counts, strict=True):
                draw.by(version, count)
        for draw in schedule.waiting:
            draw.by(version, len(draw.tokens))
        used = {schedule.places[place].weights for place in schedule.place_of}
        if used and self._versions[min(used)] < version - kv_versions:
            self._halt()

    def _follow(self) -> None:
        """Notice that parameters were written to since the last step."""
        if (written := self._written()) == self._weights:
            return
        self.slots.backend.follow()
        moves = self.schedule.change()
        if self._rows is not None:
            self._rows.move_places(moves, len(self.schedule.places))
        if self._strides is not None:
            self._strides.forget()
        self._weights = written
        if self._kept is not None:
            self._kept.follow(written, self.policy.device)
        self._versions.append(self.version)

    def _written(self) -> int:
        """How often parameters were written to, all together."""
        return sum([parameter._version for parameter in self._parameters])

    # -- a step

    @torch.inference_mode()
    def step(self) -> bool:
        """A token, or a stride, for each sequence that runs, after as many as there is room for have entered. Where
        memory runs out, none is drawn, none is lost, and fewer run from then on: False.

        Raises:
            NoRoomError: the device has no memory for one sequence.
        """
        try:
            self._step()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            return True
        # here, where no error holds any more what was allocated
        self._halt()
        if self._kept is not None:
            self._kept.clear()
        release(self.policy.device)
        schedule = self.schedule
        self.slots.ran_out(schedule.most_rows, schedule.longest_prompt + schedule.longest_own, again=self._tried_alone)
        self._tried_alone = schedule.most_rows <= 1
        return False

    def _step(self) -> None:
        schedule = self.schedule
        self._follow()
        if self._added_since and schedule.waiting:
            self._make_room()
        if (rows := self._rows) is None:
            return
        strides = self._strides
        hidden = [rows.decode(self.policy, schedule)] if schedule.rows and strides is None else []
        entered = []
        while (entry := schedule.next_entry()) is not None:
            entered.append(entry)
        if entered:
            hidden.append(rows.enter(self.policy, entered))
        if strides is not None and not entered:
            counts, ended = strides.draw(schedule, 1 if self.stops else STRIDE)
        else:
            counts, ended = rows.draw(self.policy, torch.cat(hidden), schedule.rows, self.temperature, self.ends)
        over = rows.settle(schedule.rows, counts, ended, self.stops)
        self._over += (schedule.rows[row] for row in over)
        if not over:
            return
        self._tried_alone = False
        rows.keep(schedule, over)
        moves = schedule.moves(over)
        rows.move(moves, len(schedule.rows) - len(over))
        moves = schedule.leave(moves, over)
        rows.move_places(moves, len(schedule.places))
        if not schedule.rows:
            self._added_since = True  # the next ones may be of another size
        if not self.busy:
            self._rows = self._strides = None

    def _make_room(self) -> None:
        """Take memory for those that were added, where there is none or far too little of it yet."""
        self._added_since = False
        schedule = self.schedule
        draws = [*schedule.rows, *schedule.waiting]
        prompt, own = max(len(draw.prompt) for draw in draws), max(draw.limit for draw in draws)
        count, places = self.slots.capacity(len(draws), len({draw.prompt for draw in draws}), prompt, own)
        if self._rows is not None:
            larger = prompt > schedule.longest_prompt or own > schedule.longest_own
            if not (larger and not schedule.rows) and count < 2 * schedule.most_rows:
                return
        self._halt()
        schedule.most_rows, schedule.most_places = count, places
        schedule.longest_prompt, schedule.longest_own = prompt, own
        self._rows = Rows(self.policy, self.slots.backend, count, places, prompt, own, self._kept)
        if self.slots.backend.strides:
            self._strides = Strides(self.policy, self.slots.backend, self._rows, self.temperature, self.ends)

    def _halt(self) -> None:
        """Everything that runs goes back into the queue, with its tokens."""
        if self._rows is not None:
            self._rows.keep_tokens(self.schedule.rows)
        self.schedule.clear()
        self._rows = self._strides = None
        self._added_since = True
