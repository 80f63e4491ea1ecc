"""Our end of the processes of an environment: a host that holds the class, and those of episodes below it."""

import signal
import socket
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rl.environments.episode import Outcome
from rl.environments.instance import MAX_CALLS
from rl.environments.interface import Interface
from rl.environments.spec import EnvironmentSpec
from rl.environments.turn import Action, as_json
from rl.records import Verdict
from rl.verifiers.isolation.channel import Channel, ClosedError, LostError
from rl.verifiers.isolation.child import MAX_ERROR
from rl.verifiers.isolation.interpreter import folders
from rl.verifiers.isolation.process import Cell, Process
from rl.verifiers.parts import MAX_REWARD
from rl.verifiers.verdicts import checked

CHILD = Path(__file__).with_name("child.py")
HOST_SECONDS = 10.0  # that a host may take to start or to end an episode's process


class GoneError(Exception):
    """An episode's process, or its host's, has ended of itself: one line."""

    def __init__(self, said: str, alone: bool) -> None:
        super().__init__(said, alone)
        self.alone = alone  # whether no other episode was in its sandbox

    def __str__(self) -> str:
        return str(self.args[0])


class FailedError(Exception):
    """An episode that cannot go on, by the environment's fault; the arguments are a reason and one line."""


class Host:
    """A process in a sandbox that holds the class, and its episodes. Any thread may call it."""

    def __init__(self, spec: EnvironmentSpec, cell: Cell, room: int) -> None:
        """For ``room`` episodes at once. Raises LoadError."""
        limits = spec.limits
        load = {
            "text": spec.text,
            "file": spec.file,
            "class": spec.class_name,
            "seconds": limits.seconds,
            "memory_mb": limits.memory,
            "limits": asdict(limits),
            "keeps": [*folders(), *cell.reads],
        }
        self.room, self.name = room, f"{spec.file}: {spec.class_name}"
        self.episodes: set[str] = set()  # the keys of those that are open
        self._process, self._lock = Process(load, cell, CHILD, forks=room), threading.Lock()
        loaded = self._process.loaded
        self.interface = Interface(tuple(loaded["tools"]), loaded["step"])

    @property
    def alone(self) -> bool:
        """Whether it is for one episode."""
        return self.room == 1

    def runs(self) -> bool:
        return self._process.runs()

    def ask(self, message: dict[str, Any], files: list[int] | None = None) -> dict[str, Any]:
        """Raises GoneError."""
        with self._lock:
            try:
                return self._process.call(message, HOST_SECONDS, files or [])
            except LostError as lost:
                self._process.kill()
                raise GoneError(f"{self.name} {lost.args[1]}", self.alone) from None

    def kill(self) -> None:
        with self._lock:
            self._process.kill()


class Playing:
    """An episode's own process. One thread at a time may call it."""

    def __init__(self, host: Host, seed: str, columns: Mapping[str, Any], seconds: float) -> None:
        """Raises GoneError."""
        self.host, self._columns, self._seconds = host, columns, seconds
        self._ended = ""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._pid = host.ask({"open": seed}, [theirs.fileno()])["pid"]
            except BaseException:
                ours.close()
                raise
        self._channel = Channel(ours, host.runs)

    def reset(self) -> Outcome:
        """Raises GoneError and FailedError."""
        return self._outcome({"reset": self._columns})

    def act(self, action: Action) -> Outcome:
        """Raises GoneError and FailedError."""
        return self._outcome({"act": as_json(action)})

    def reward(self) -> Verdict:
        """Raises GoneError and FailedError."""
        answer = self._ask({"reward": True})
        try:
            return checked(answer.get("reward"), answer.get("reason"), answer.get("parts"))
        except ValueError as error:
            raise FailedError("environment_error", str(error)) from None

    def close(self) -> str:
        """End it with all that it started; how it ended. Raises GoneError where its host has."""
        if not self._ended:
            self.hang_up()
            how = self.host.ask({"end": self._pid})
            number = how.get("signal")
            self._ended = f"by {signal.Signals(number).name}" if number else f"with exit code {how.get('exit')}"
        return self._ended

    def hang_up(self) -> None:
        """Ask it nothing more."""
        self._channel.close()

    def _outcome(self, message: dict[str, Any]) -> Outcome:
        """What it answers, which is believed no more than its code is."""
        answer = self._ask(message)
        match answer:
            case {"observations": [*texts], "over": bool(over)} if all(isinstance(text, str) for text in texts):
                reward, refused = answer.get("reward", 0.0), answer.get("refused", 0)
                if type(reward) in (float, int) and abs(reward) <= MAX_CALLS * MAX_REWARD and type(refused) is int:
                    return Outcome(tuple(texts), float(reward), over, refused)
        raise FailedError("environment_error", f"{self.host.name} sent an answer that is none")

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = self._channel.call(message, self._seconds)
        except LostError as lost:
            reason, said = lost.args
            reason = reason if reason == "timeout" else "environment_error"
            raise FailedError(reason, f"{self.host.name} {said}") from None
        except ClosedError:
            how = self.close()
            if how == f"by {signal.SIGXCPU.name}":
                raise FailedError("timeout", f"{self.host.name} used more processor time than it may") from None
            raise GoneError(f"{self.host.name} ended its process {how}", self.host.alone) from None
        if answer.get("error"):
            raise FailedError("environment_error", str(answer["error"])[:MAX_ERROR])
        return answer
