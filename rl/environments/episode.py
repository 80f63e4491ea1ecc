"""An episode as plain data: what it began from, and every action with what came of it.

That is all there is to an episode. The process that plays it is a cache of it, on whichever machine.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from rl.environments.turn import Action
from rl.records import Problem


@dataclass(frozen=True)
class Outcome:
    """What came of an action, or of reset."""

    observations: tuple[str, ...] = ()  # one for each call; of step, and of reset, one or none
    reward: float = 0.0  # of this turn
    over: bool = False  # whether the episode has ended
    refused: int = 0  # calls that were not made: unknown, with other arguments, or the tool raised ValueError
    reason: str = ""  # "timeout", "environment_error" or "replay_differs" where the environment failed
    error: str = ""  # one line on that: such an episode has no reward
    seconds: float = field(default=0.0, compare=False)  # that it took


TOO_DEEP = Outcome(("error: the arguments are nested too deeply",), refused=1)  # of a call that no tool could take


@dataclass(frozen=True)
class Episode:
    """One episode. Its random numbers are those of its seed: the same seed and actions, the same episode."""

    key: str  # no other open episode has it
    problem: Problem  # whose columns reset is given
    seed: str = ""  # several may share one; none takes the key
    opening: Outcome | None = None  # of reset; None: it has not begun
    turns: tuple[tuple[Action, Outcome], ...] = ()
    said: tuple[str, ...] = ()  # by the policy, turn by turn, for people; the last one may not have been acted on

    @property
    def columns(self) -> dict[str, Any]:
        """What reset is given by name: the prompt, the target where there is one, and all further columns."""
        target = {} if self.problem.no_target else {"target": self.problem.target}
        return {"prompt": self.problem.prompt, **target, **self.problem.extra}

    @property
    def history(self) -> tuple[tuple[Action | None, Outcome], ...]:
        """All that was done, reset as None, with what came of it."""
        return () if self.opening is None else ((None, self.opening), *self.turns)

    @property
    def last(self) -> Outcome | None:
        """What came last; None before it has begun."""
        return self.history[-1][1] if self.history else None

    @property
    def over(self) -> bool:
        """Whether it has ended, or cannot go on."""
        return self.last is not None and (self.last.over or bool(self.last.error))

    def opened(self, outcome: Outcome) -> "Episode":
        """The same, begun."""
        return replace(self, opening=outcome)

    def after(self, action: Action, outcome: Outcome) -> "Episode":
        """The same, a turn later."""
        return replace(self, turns=(*self.turns, (action, outcome)))

    def saying(self, text: str) -> "Episode":
        """The same, with what the policy wrote in its next turn."""
        return replace(self, said=(*self.said, text))

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation behind the prompt: what the policy said, and what it observed, of its calls as a tool's."""
        found = []
        for at, text in enumerate(self.said):
            found.append({"role": "assistant", "content": text})
            for action, outcome in self.turns[at : at + 1]:
                role = "user" if isinstance(action, str) else "tool"
                found += [{"role": role, "content": observed} for observed in outcome.observations]
        return found
