"""The sequences that run, on the device: their tokens, keys and values, a row each.

Legend: B rows in use, M places (prompts), E sequences that enter.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from rl.model.attention import Grid
from rl.model.policy import Policy
from rl.sampling.backend import Backend
from rl.sampling.cache import DecodePass, SlotCache, decoded, move
from rl.sampling.decoding import StopStrings, chosen, scaled_logits
from rl.sampling.prefill import Prefill, prefilled
from rl.sampling.prefix_cache import CachedPrompt, PrefixCache
from rl.sampling.scheduling import Draw, Move, Scheduler


class Rows:
    """What is known of the first B rows and M places. `drawn` is kept on both sides, so that nobody waits for it."""

    def __init__(
        self, policy: Policy, backend: Backend, rows: int, places: int, prompt: int, own: int, kept: PrefixCache | None
    ) -> None:
        device = policy.device
        self.lean = backend.lean
        self.choice = backend.choice
        # however many positions there are
        self.reads_what_is_seen = backend.lean is not None and backend.lean.kernels is not None
        dense = not self.reads_what_is_seen
        self.cache = SlotCache(rows, places, own, prompt, share=backend.share, grows=backend.grows, dense=dense)
        self.kept = kept if backend.share else None  # what rows may begin with
        self.tokens = torch.zeros((rows, own), dtype=torch.int64, device=device)
        self.logprobs = torch.zeros((rows, own), device=device)
        self.noise = torch.zeros((rows, own), device=device)
        self.drawn = torch.zeros(rows, dtype=torch.int64, device=device)
        self.behind = torch.zeros(rows, dtype=torch.int64, device=device)  # how long its prompt is
        self.prompt_lengths = torch.zeros(places, dtype=torch.int64, device=device)
        self.prompt_states: Tensor | None = None  # [M, hidden] of the last token of each prompt
        self.counts: list[int] = []  # [B] drawn
        self.lengths: list[int] = []  # [M] of prompts
        self._grid: Grid | None = None

    # -- a step

    def decode(self, policy: Policy, schedule: Scheduler) -> Tensor:
        """[B, hidden] behind the last token of each row."""
        B, cache = len(self.counts), self.cache  # noqa: N806
        if self._grid is None:
            self._grid = Grid.of(schedule.place_of, len(schedule.places), policy.device)
        at = self.drawn[:B] - 1
        positions = self.behind[:B] + at
        longest = max(self.counts)
        if not cache.share:
            longest = max(
                count + self.lengths[place] for count, place in zip(self.counts, schedule.place_of, strict=True)
            )
        step = DecodePass(
            cache,
            at if cache.share else positions,
            longest,
            self._grid,
            self.prompt_lengths[: len(self.lengths)],
            max(self.lengths),
            even=min(self.counts) == longest,
            even_prompts=len(set(self.lengths)) == 1,
        )
        ids = self.tokens[:B].gather(1, at[:, None])
        return decoded(policy, step, ids, positions, self.lean)

    def enter(self, policy: Policy, entered: Sequence[tuple[Draw, int]]) -> Tensor:
        """[E, hidden] behind the prompt, or the tokens so far, of those that enter, which get the next rows."""
        device, first = policy.device, len(self.counts)
        rows = torch.arange(first, first + len(entered), device=device)
        self._begin(entered, rows)
        new: dict[int, Draw] = {}  # first sequence of each new place
        for draw, place in entered:
            if place >= len(self.lengths):
                new.setdefault(place, draw)
        self.lengths += (len(draw.prompt) for draw in new.values())
        of_place = torch.tensor([place for _, place in entered], device=device)
        self.behind[rows] = torch.tensor([len(draw.prompt) for draw, _ in entered], device=device)
        if new:
            places = torch.tensor(list(new), device=device)
            self.prompt_lengths[places] = torch.tensor([len(draw.prompt) for draw in new.values()], device=device)

        restored = self._restored({place: draw.prompt for place, draw in new.items()})
        prompts = [Prefill(draw.prompt, place) for place, draw in new.items() if place not in restored]
        for one, state in prefilled(policy, self.cache, prompts, self.lean):
            self._set_state(one.place, state)
        assert self.prompt_states is not None
        found = self.prompt_states[of_place]
        fresh = torch.tensor([len(draw.tokens) == 0 for draw, _ in entered], device=device)
        self.cache.begin(rows[fresh], of_place[fresh])
        begun = [(draw, place, first + index) for index, (draw, place) in enumerate(entered) if len(draw.tokens)]
        for one, state in prefilled(policy, self.cache, self._given(begun), self.lean):
            assert one.row is not None
            found[one.row - first] = state
        self.counts += (len(draw.tokens) for draw, _ in entered)
        self._grid = None
        return found

    def draw(
        self, policy: Policy, hidden: Tensor, draws: Sequence[Draw], temperature: float, ends: Tensor
    ) -> tuple[list[int], list[bool]]:
        """Draw a token of each of the last rows from their [E, hidden] states. Counts of all rows by then, and which of
        them have reached an end token: for `settle`."""
        first, last = len(self.counts) - len(hidden), len(self.counts)
        drawn, rows = self.drawn[first:last], torch.arange(first, last, device=hidden.device)
        each = [draw.noise is None for draw in draws[first:]]
        greedy = each[0] if len(set(each)) == 1 else torch.tensor(each, device=hidden.device)
        token, logprobs = chosen(
            scaled_logits(policy, hidden, temperature, self.lean), greedy, self.noise[rows, drawn], self.choice
        )
        self.tokens[rows, drawn] = token
        self.logprobs[rows, drawn] = logprobs
        ended = (token[:, None] == ends).any(1).tolist() if len(ends) else [False] * len(hidden)
        drawn += 1
        return [count + (row >= first) for row, count in enumerate(self.counts)], [False] * first + ended

    def settle(
        self, draws: Sequence[Draw], counts: list[int], ended: Sequence[bool], stops: StopStrings | None
    ) -> list[int]:
        """Take what was drawn: the rows that are over by it, whose tokens are kept. Out of memory, none was drawn."""
        if stops is not None:
            tokens = self.tokens[: len(counts)].cpu().numpy()
            reached = stops.reached([tokens[row, :count] for row, count in enumerate(counts)])
            ended = [one or other for one, other in zip(ended, reached, strict=True)]
        over = [row for row, count in enumerate(counts) if ended[row] or count == draws[row].limit]
        kept = self._kept(over, counts)
        self.counts = counts
        for row, tokens_and_logprobs in zip(over, kept, strict=True):
            draws[row].tokens, draws[row].logprobs = tokens_and_logprobs
            draws[row].ended = ended[row]
        return over

    # -- which rows

    def keep_tokens(self, draws: Sequence[Draw]) -> None:
        """Give those that are not over their tokens so far."""
        rows = [row for row in range(len(self.counts)) if not draws[row].over]
        for row, kept in zip(rows, self._kept(rows, self.counts), strict=True):
            draws[row].tokens, draws[row].logprobs = kept

    def keep(self, schedule: Scheduler, over: Sequence[int]) -> None:
        """Keep keys and values of those that have reached an end, where all of them are by the weights as they are."""
        if self.kept is None:
            return
        for row in over:
            draw, place = schedule.rows[row], schedule.place_of[row]
            if not (draw.ended and draw.goes_on) or schedule.places[place].weights != schedule.weights:
                continue
            self.kept.put_prompt(draw.prompt, partial(self._kept_prompt, place))
            if self.counts[row] > 1:
                self.kept.put(draw.prompt, draw.tokens, partial(self.cache.rows.copied, row, self.counts[row] - 1))

    def _kept_prompt(self, place: int) -> CachedPrompt:
        assert self.prompt_states is not None
        return CachedPrompt(
            self.cache.prompts_kept.copied(place, self.lengths[place]), self.prompt_states[place].clone()
        )

    def _kept(self, rows: Sequence[int], counts: Sequence[int]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The tokens of these rows and their log-probs, so many of each row."""
        if not rows:
            return []
        # there, because the device may have no memory left
        tokens, logprobs = (kept.cpu().numpy()[list(rows)] for kept in (self.tokens, self.logprobs))
        return [
            (ids[: counts[row]].astype(np.int32), scores[: counts[row]].copy())
            for row, ids, scores in zip(rows, tokens, logprobs, strict=True)
        ]

    def move(self, moves: Sequence[Move], left: int) -> None:
        """Close gaps among the rows; `left` are in use after it."""
        move([self.tokens, self.logprobs, self.noise, self.drawn, self.behind], moves)
        self.cache.rows.move(moves)
        for to, source in moves:
            self.counts[to] = self.counts[source]
        del self.counts[left:]
        self._grid = None

    def move_places(self, moves: Sequence[Move], left: int) -> None:
        """Close gaps among the places."""
        assert self.prompt_states is not None
        move([self.prompt_states, self.prompt_lengths], moves)
        self.cache.prompts_kept.move(moves)
        for to, source in moves:
            self.lengths[to] = self.lengths[source]
        del self.lengths[left:]
        self._grid = None

    def _begin(self, entered: Sequence[tuple[Draw, int]], rows: Tensor) -> None:
        """The tokens so far and the noise of those that enter."""
        own = self.tokens.shape[1]
        tokens = np.zeros((len(entered), own), dtype=np.int64)
        logprobs, noise = np.zeros((2, len(entered), own), dtype=np.float32)
        for index, (draw, _) in enumerate(entered):
            tokens[index, : len(draw.tokens)] = draw.tokens
            logprobs[index, : len(draw.tokens)] = draw.logprobs
            if draw.noise is not None:
                noise[index, : draw.limit] = draw.noise
        self.tokens[rows] = torch.from_numpy(tokens).to(rows.device)
        self.logprobs[rows] = torch.from_numpy(logprobs).to(rows.device)
        self.noise[rows] = torch.from_numpy(noise).to(rows.device)
        counts = [len(draw.tokens) for draw, _ in entered]
        self.drawn[rows] = torch.tensor(counts, device=rows.device)

    def _given(self, begun: Sequence[tuple[Draw, int, int]]) -> list[Prefill]:
        """What is to be computed of the tokens that rows begin with, each of a draw, a place and a row: where it has a
        copy of its prompt, behind that."""
        found, prefills = {}, []
        for draw, place, row in begun:
            tokens, prompt = tuple(draw.tokens.tolist()), len(draw.prompt)
            if not self.cache.share:
                prefills.append(Prefill(draw.prompt + tokens, place, row))
            elif self.kept is None or (kept := self.kept.take(draw.prompt, draw.tokens)) is None:
                prefills.append(Prefill(tokens, place, row, prompt))
            else:
                found[row] = kept.layers
                prefills.append(Prefill(tokens[kept.positions :], place, row, prompt, kept.positions))
        self.cache.rows.restore(found)
        return prefills

    def _restored(self, prompts: Mapping[int, tuple[int, ...]]) -> Collection[int]:
        """Those of these places whose prompts' keys and values were kept, which are there then."""
        kept = {} if self.kept is None else {place: self.kept.prompt(prompt) for place, prompt in prompts.items()}
        found = {place: one for place, one in kept.items() if one is not None}
        self.cache.prompts_kept.restore({place: one.layers for place, one in found.items()})
        for place, one in found.items():
            self._set_state(place, one.state)
        return found

    def _set_state(self, place: int, state: Tensor) -> None:
        if self.prompt_states is None:
            self.prompt_states = state.new_zeros(len(self.prompt_lengths), len(state))
        self.prompt_states[place] = state
