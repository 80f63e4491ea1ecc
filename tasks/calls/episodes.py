"""Episodes of an environment as calls on a verifier, which may have played them before or not. It imports no torch."""

from collections.abc import Sequence

from infra.home import rlvf_home
from rl.environments.episode import Episode, Outcome
from rl.environments.interface import Interface
from rl.environments.opened import Played, opened
from rl.environments.spec import EnvironmentSpec, EnvironmentSpecError
from rl.environments.turn import of_json
from rl.judging import Judgement
from rl.records import Problem
from rl.verifiers.isolation.process import LoadError
from rl.verifiers.isolation.sandbox import SandboxError


def play(spec: EnvironmentSpec, episodes: Sequence[Episode], actions: Sequence[str | None]) -> list[Outcome]:
    """What comes of the action of each, as a text; of None, with which one begins, what reset says."""
    sessions = _sessions(spec)
    begin = [at for at, action in enumerate(actions) if action is None]
    asked = {at: of_json(action) for at, action in enumerate(actions) if action is not None}
    found = dict(zip(begin, sessions.open([episodes[at] for at in begin]), strict=True))
    found |= zip(asked, sessions.act([episodes[at] for at in asked], list(asked.values())), strict=True)
    return [found[at] for at in range(len(episodes))]


def judge_episodes(spec: EnvironmentSpec, episodes: Sequence[Episode], samples: int) -> Judgement:
    """The rewards of episodes [P * G]; they are forgotten then."""
    sessions = _sessions(spec)
    verdicts = sessions.judge(episodes)
    sessions.close([episode.key for episode in episodes])
    return Judgement.of([verdicts[at : at + samples] for at in range(0, len(verdicts), samples)])


def try_environment(spec: EnvironmentSpec, problems: Sequence[Problem]) -> Interface:
    """How the environment is acted on, where it can be loaded and begin with these problems.

    Raises:
        EnvironmentSpecError: it cannot, in one line.
    """
    sessions = _sessions(spec)
    try:
        interface = sessions.interface
    except LoadError as error:
        raise EnvironmentSpecError(f"environment {error}") from None
    tried = [Episode(f"tried {problem.source}", problem) for problem in problems]
    outcomes = sessions.open(tried)
    sessions.close([each.key for each in tried])
    if broken := [outcome.error for outcome in outcomes if outcome.error]:
        raise EnvironmentSpecError(
            f"environment {broken[0]}; of problems that it is not for name the verifier (--problems.verifier, in mix: "
            "verifier)"
        )
    return interface


def _sessions(spec: EnvironmentSpec) -> Played:
    try:
        return opened(spec, rlvf_home())
    except SandboxError as error:
        raise EnvironmentSpecError(f"environment {spec.name}: {error}") from None
