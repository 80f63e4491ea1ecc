"""Built-in environments that are played in the process that asks: they are ours, their actions take microseconds, and
nothing that a policy writes is run."""

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import import_module
from time import perf_counter
from typing import Any

from rl.environments.episode import TOO_DEEP, Episode, Outcome
from rl.environments.instance import Instance
from rl.environments.interface import Interface, interface_of
from rl.environments.spec import EnvironmentSpec
from rl.environments.turn import Action
from rl.records import Verdict
from rl.verifiers.isolation.child import described
from rl.verifiers.verdicts import checked, failed

FAILED = "environment_error"


def class_of(spec: EnvironmentSpec) -> type:
    """The class of a built-in environment."""
    found: type = getattr(import_module(f"rl.environments.built_in.{spec.name}"), spec.class_name)
    return found


def plays_in_process(spec: EnvironmentSpec) -> bool:
    """Whether an environment is one that `InProcess` plays: a built-in one whose class says by ``in_process`` that it
    runs nothing of the policy's and needs no seed."""
    return spec.built_in and bool(getattr(class_of(spec), "in_process", False))


class InProcess:
    """The episodes of a built-in environment, with the methods of `Sessions`. Nothing is kept of them: each is played
    again from its actions, which costs less than a process that waits. Any thread may call it."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._class = class_of(spec)
        self._path, self._file = inspect.getfile(self._class), spec.file
        self.interface: Interface = interface_of(self._class)

    def open(self, episodes: Sequence[Episode]) -> list[Outcome]:
        """As `Sessions.open`."""
        return [self._outcome(episode) for episode in episodes]

    def act(self, episodes: Sequence[Episode], actions: Sequence[Action]) -> list[Outcome]:
        """As `Sessions.act`."""
        return [self._outcome(episode, action) for episode, action in zip(episodes, actions, strict=True)]

    def judge(self, episodes: Sequence[Episode]) -> list[Verdict]:
        """As `Sessions.judge`."""
        return [self._verdict(episode) for episode in episodes]

    def close(self, keys: Iterable[str]) -> None:
        """As `Sessions.close`."""

    def end(self) -> None:
        """As `Sessions.end`."""

    def _outcome(self, episode: Episode, *then: Action) -> Outcome:
        begun = perf_counter()
        try:
            _, said = self._played(episode, then)
            of = said.get("reward", 0.0), said["over"], said.get("refused", 0)
            made = Outcome(tuple(said["observations"]), *of)
        except RecursionError:
            made = TOO_DEEP
        except Exception as error:  # noqa: BLE001 - whatever it is: of columns that are not this environment's
            made = Outcome(reason=FAILED, error=self._described(error, episode))
        return replace(made, seconds=perf_counter() - begun)

    def _verdict(self, episode: Episode) -> Verdict:
        last = episode.last
        assert last is not None, episode.key
        if last.error:
            return failed(last.reason, last.error)
        try:
            found = self._played(episode)[0].reward()
        except Exception as error:  # noqa: BLE001
            return failed(FAILED, self._described(error, episode))
        return checked(found["reward"], found["reason"], found["parts"])

    def _played(self, episode: Episode, then: Sequence[Action] = ()) -> tuple[Instance, dict[str, Any]]:
        """The environment behind all that was done, and what came last."""
        instance = Instance(self._class, self.interface)
        said = instance.reset(episode.columns)
        for action in (*(action for action, _ in episode.turns), *then):
            said = instance.act(action)
        return instance, said

    def _described(self, error: Exception, episode: Episode) -> str:
        return f"{described(error, self._path).replace(self._path, self._file)} ({episode.problem.source})"
