"""What a configuration may say where an environment is acted on: it gives the rewards, and has problems of its own."""

from typing import Any

from flows.options.tree import changed_leaves
from rl.config import OURS, PLAYED, PolicyConfig, ProblemsConfig, SamplingConfig, VerifierConfig
from rl.environments.environment_config import EnvironmentConfig


def own_problems(given: Any) -> Any:
    """A configuration of an environment of ours with that one's problems, where no set is named that it plays."""
    if not isinstance(given, dict):
        return given
    environment, problems = given.get("environment"), given.get("problems")
    name = environment.get("name") if isinstance(environment, dict) else getattr(environment, "name", environment)
    usual = ProblemsConfig().path
    if name not in PLAYED or name in map(_path, given.get("mix") or ()):
        return given
    if isinstance(problems, dict) and problems.get("path", usual) == usual:
        return {**given, "problems": {**problems, "path": name}}
    return {**given, "problems": name} if problems is None or problems in (usual, ProblemsConfig()) else given


def _path(problems: Any) -> Any:
    """Of a set as it was given."""
    return problems.get("path") if isinstance(problems, dict) else getattr(problems, "path", problems)


def refuse_beside(
    environment: EnvironmentConfig,
    verifier: VerifierConfig,
    policy: PolicyConfig,
    sampling: SamplingConfig,
    *,
    judged: bool,
) -> None:
    """Raise ValueError where what is said of completions of one turn stands beside an ``environment``; ``judged``:
    whether some problems beside it have a verifier of their own."""
    name = environment.name
    if name is None:
        return
    changed = [path for path, _, _ in changed_leaves(VerifierConfig(), verifier)]
    if "name" in changed:
        raise ValueError(
            f"verifier.name: the environment {name} gives the reward; leave one of them out, or name the verifier of "
            "problems of one turn by --problems.verifier (in mix: verifier)"
        )
    if changed and not judged:
        raise ValueError(f"verifier.{changed[0]}: the environment {name} gives the reward; leave one of them out")
    if policy.engine != OURS:
        raise ValueError("policy.engine: a server is asked for completions of one turn; leave out the environment")
    if sampling.stop:
        raise ValueError("sampling.stop: a turn ends by the model's own end token; leave out the environment or this")
