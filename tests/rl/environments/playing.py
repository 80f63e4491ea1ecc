"""Episodes that tests play."""

from collections.abc import Sequence

from rl.environments.episode import Episode, Outcome
from rl.environments.sessions import Sessions
from rl.environments.spec import EnvironmentSpec
from rl.environments.turn import Action
from rl.records import Problem
from rl.verifiers.isolation.process import Cell
from rl.verifiers.isolation.sandbox import AUTO, chosen
from rl.verifiers.isolation.secret_places import secret_places


def sessions_of(text: str, name: str, sandbox: str = AUTO, size: int = 2) -> Sessions:
    spec = EnvironmentSpec(name=f"{name.lower()}.py:{name}", text=text)
    cell = Cell(chosen(sandbox), hidden=secret_places(None), section="environment")  # as a run has it
    return Sessions(spec, cell, size)


def begun(sessions: Sessions, targets: Sequence[str]) -> list[Episode]:
    """Episodes of problems with these targets, which are their keys as well."""
    episodes = [Episode(target, Problem("what?", target, f"p.csv:{target}")) for target in targets]
    return [episode.opened(outcome) for episode, outcome in zip(episodes, sessions.open(episodes), strict=True)]


def acted(sessions: Sessions, episodes: Sequence[Episode], *actions: Action) -> list[Episode]:
    """Each episode after its action, or after the one for all."""
    those = list(actions) if len(actions) == len(episodes) else list(actions) * len(episodes)
    outcomes = sessions.act(episodes, those)
    return [episode.after(*each) for episode, *each in zip(episodes, those, outcomes, strict=True)]


def said(episodes: Sequence[Episode]) -> list[str]:
    """What was observed last; of an episode that failed, its error."""
    return [" | ".join(last.observations) or last.error for last in map(_last, episodes)]


def _last(episode: Episode) -> Outcome:
    assert episode.last is not None
    return episode.last
