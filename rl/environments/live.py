"""An episode that is open: its process, and what was done in it."""

import json
from dataclasses import dataclass

from rl.environments.episode import Episode, Outcome
from rl.environments.processes import Playing
from rl.environments.turn import Action, as_json
from rl.records import Verdict


@dataclass
class Live:
    """An episode that is open."""

    playing: Playing
    origin: str  # of `origin_of`
    log: list[tuple[str, Outcome]]  # all that was done, as `named`, with what came of it
    verdict: Verdict | None = None

    def is_at(self, origin: str, log: list[tuple[str, Outcome]], then: str | None) -> bool:
        """Whether it began there and has come as far as the log, or one such action further. What get_reward may have
        changed is not gone on from."""
        further = [action for action, _ in self.log[len(log) :]]
        untouched = self.verdict is None or then is None
        return (self.origin, self.log[: len(log)]) == (origin, log) and (
            further == [then] or (not further and untouched)
        )

    def do(self, action: Action | None) -> Outcome:
        """Raises GoneError and FailedError."""
        outcome = self.playing.reset() if action is None else self.playing.act(action)
        self.log.append((named(action), outcome))
        return outcome


def origin_of(episode: Episode) -> str:
    """What an episode begins from: another run may have one of the same key."""
    return json.dumps([episode.seed, episode.columns], sort_keys=True, default=repr)


def named(action: Action | None) -> str:
    """An action as a text, by which it is compared; reset's is empty."""
    return "" if action is None else as_json(action)
