"""The episodes that a process has open, each in a process of its own.

An episode's actions are the truth, its process a cache: one that is not there is made by acting again, and where that
gives other observations the episode is an error. An episode whose process was lost is made again alone in a sandbox;
lost there, it is an error. So one that takes its sandbox down harms no other.
"""

import os
import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from rl.environments.episode import TOO_DEEP, Episode, Outcome
from rl.environments.interface import Interface
from rl.environments.live import Live, named, origin_of
from rl.environments.processes import FailedError, GoneError, Host, Playing
from rl.environments.spec import EnvironmentSpec
from rl.environments.turn import Action
from rl.records import Verdict
from rl.verifiers.isolation import leftovers, sandbox
from rl.verifiers.isolation.confinement import close_environment
from rl.verifiers.isolation.process import Cell, LoadError
from rl.verifiers.verdicts import failed

HOSTS = 16  # sandboxes of several episodes
ROOM = 32  # episodes in one of these
OPEN = HOSTS * ROOM  # episodes whose processes are kept
ALONE = 4  # sandboxes of one that is alone, beside those in use
SHOWN = 80  # characters of an observation in a message

T = TypeVar("T")


class Sessions:
    """The episodes of one environment. Any thread may call it; its own threads, `size` of them, act."""

    def __init__(self, spec: EnvironmentSpec, cell: Cell | None = None, size: int = 0) -> None:
        """Raises EnvironmentSpecError and SandboxError."""
        self._spec, self._limits = spec, spec.limits
        self._name = f"{spec.file}: {spec.class_name}"
        self._cell = cell or Cell(sandbox.chosen(spec.sandbox, "environment"), section="environment")
        self._threads = ThreadPoolExecutor(size or min(4, os.cpu_count() or 1), thread_name_prefix="environment")
        self._placing, self._lock = threading.Lock(), threading.Lock()
        self._hosts: list[Host] = []
        self._idle: OrderedDict[str, Live] = OrderedDict()  # the one that was used last comes last
        self._alone: set[str] = set()  # the keys of episodes whose processes were lost, and that are to be made again
        self._ended = False
        if self._cell.sandbox == sandbox.NONE:
            close_environment()
        leftovers.sweep(os.geteuid())

    @property
    def interface(self) -> Interface:
        """The tools. Raises LoadError where the class is no environment."""

        def load() -> Interface:
            with self._placing:
                return self._shared_host().interface

        return self._threads.submit(load).result()

    def open(self, episodes: Sequence[Episode]) -> list[Outcome]:
        """What reset says for each: its observation is added to the prompt. Failures are outcomes with an error."""
        return self._each(lambda episode: self._outcome(episode, None), episodes)

    def act(self, episodes: Sequence[Episode], actions: Sequence[Action]) -> list[Outcome]:
        """What comes of an action for each, which has begun and is not over: again the same where it was asked before.
        Failures are outcomes with an error."""
        asked = {episode.key: action for episode, action in zip(episodes, actions, strict=True)}
        assert len(asked) == len(episodes)
        return self._each(lambda episode: self._outcome(episode, asked[episode.key]), episodes)

    def judge(self, episodes: Sequence[Episode]) -> list[Verdict]:
        """The reward of each, as it stands after its turns; NaN where the environment failed."""
        return self._each(self._verdict, episodes)

    def close(self, keys: Iterable[str]) -> None:
        """Forget these episodes: no more is asked of them."""
        for key in keys:
            with self._lock:
                live = self._idle.pop(key, None)
            if live is not None:
                self._drop(key, live)
            with self._lock:
                self._alone.discard(key)

    def end(self) -> None:
        """Kill the processes. What is still asked has no answer."""
        self._ended = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._placing, self._lock:
            for host in self._hosts:
                host.kill()
            for live in self._idle.values():
                live.playing.hang_up()
            self._idle.clear()
            self._hosts.clear()

    def _each(self, of: Callable[[Episode], T], episodes: Sequence[Episode]) -> list[T]:
        return list(self._threads.map(of, episodes))

    def _outcome(self, episode: Episode, action: Action | None) -> Outcome:
        assert not episode.over, episode.key
        assert (action is None) == (episode.opening is None), episode.key
        begun, at = time.monotonic(), len(episode.history)

        def outcome(live: Live) -> Outcome:
            return live.log[at][1] if len(live.log) > at else live.do(action)

        try:
            made = self._with(episode, named(action), outcome)
        except RecursionError:
            made = TOO_DEEP
        except FailedError as error:
            reason, said = error.args
            made = Outcome(reason=reason, error=said)
        return replace(made, seconds=time.monotonic() - begun)

    def _verdict(self, episode: Episode) -> Verdict:
        last = episode.last
        assert last is not None, episode.key

        def verdict(live: Live) -> Verdict:
            if live.verdict is None:
                live.verdict = live.playing.reward()
            return live.verdict

        if last.error:
            return failed(last.reason, last.error)
        try:
            return self._with(episode, None, verdict)
        except FailedError as error:
            return failed(*error.args)

    def _with(self, episode: Episode, then: str | None, use: Callable[[Live], T]) -> T:
        """What ``use`` makes of the episode, at the end of its history or, where that was done before, the action
        ``then`` behind it. Raises FailedError."""
        origin, log = origin_of(episode), [(named(action), outcome) for action, outcome in episode.history]
        while True:
            live = self._taken(episode.key)
            try:
                if live is not None and not live.is_at(origin, log, then):
                    self._drop(episode.key, live)
                    live = None
                if live is None:
                    live = Live(self._placed(episode), origin, [])
                    self._replay(live, episode)
                made = use(live)
            except GoneError as gone:
                if live is not None:
                    self._drop(episode.key, live)
                if gone.alone:
                    raise FailedError("environment_error", f"{gone}{self._about(episode)}") from None
                with self._lock:
                    self._alone.add(episode.key)
            except FailedError as error:
                if live is not None:
                    self._drop(episode.key, live)
                reason, said = error.args
                raise FailedError(reason, f"{said}{self._about(episode)}") from None
            except LoadError as error:
                raise FailedError("environment_error", str(error)) from None
            except BaseException:
                if live is not None:
                    self._drop(episode.key, live)
                raise
            else:
                self._put_back(episode.key, live)
                return made

    def _replay(self, live: Live, episode: Episode) -> None:
        """Do all that was done. Raises GoneError and FailedError."""
        for turn, (action, known) in enumerate(episode.history):
            found = live.do(action)
            if found != known:
                raise FailedError(
                    "replay_differs",
                    f"{self._name} {'began' if not turn else f'answered turn {turn}'} with {_shown(found)} when it was "
                    f"done again, with {_shown(known)} before; let it depend on columns, actions and random alone",
                )

    def _about(self, episode: Episode) -> str:
        return f" ({episode.problem.source}){self._cell.printed}"

    def _taken(self, key: str) -> Live | None:
        """The open episode, which nobody else uses until it is put back; None where there is none."""
        with self._lock:
            live = self._idle.pop(key, None)
        if live is not None and not live.playing.host.runs():
            self._drop(key, live)
            return None
        return live

    def _put_back(self, key: str, live: Live) -> None:
        with self._lock:
            self._alone.discard(key)
            over = [(key, self._idle.pop(key))] if key in self._idle else []  # it was asked twice at once
            self._idle[key] = live
            alone = [(each, one) for each, one in self._idle.items() if one.playing.host.alone]
            over += [(each, self._idle.pop(each)) for each, _ in alone[:-ALONE]]
        for each, one in over:
            self._drop(each, one)

    def _drop(self, key: str, live: Live) -> None:
        """End an episode's process, and its host where that is for it alone."""
        host = live.playing.host
        with suppress(GoneError):
            live.playing.close()
        if host.alone or not host.runs():
            self._end(host)
        with self._lock:
            host.episodes.discard(key)

    def _end(self, host: Host) -> None:
        """End a host. The episodes of a shared one were lost with it, each perhaps by its own doing."""
        host.kill()
        with self._lock:
            if host in self._hosts:
                self._hosts.remove(host)
            if not host.alone:
                self._alone |= host.episodes

    def _placed(self, episode: Episode) -> Playing:
        """A new process for the episode. Raises GoneError, FailedError and LoadError."""
        with self._placing:
            if self._ended:
                raise FailedError("environment_error", f"{self._name} was ended")
            with self._lock:
                alone = episode.key in self._alone
            host = self._started(1) if alone else self._shared_host()
            with self._lock:
                host.episodes.add(episode.key)
        try:
            return Playing(host, episode.seed or episode.key, episode.columns, self._limits.seconds)
        except GoneError:
            self._end(host)
            raise

    def _shared_host(self) -> Host:
        """One with room for another episode; one that waits is ended for it, any: where more are played in turns than
        have room, the one that has waited longest would be asked next. Raises LoadError."""
        with self._lock:
            hosts = [host for host in self._hosts if not host.alone]
        for host in hosts:
            if not host.runs():
                self._end(host)
            elif len(host.episodes) < host.room:
                return host
        with self._lock:
            waits = [key for key, live in self._idle.items() if not live.playing.host.alone]
            full = len(hosts) >= HOSTS and bool(waits)
            ended = (key := random.choice(waits), self._idle.pop(key)) if full else None
        if ended is None:
            return self._started(ROOM)
        self._drop(*ended)
        return self._shared_host()

    def _started(self, room: int) -> Host:
        host = Host(self._spec, self._cell, room)
        with self._lock:
            self._hosts.append(host)
        return host


def _shown(outcome: Outcome) -> str:
    text = f"{' | '.join(outcome.observations)!r}"
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return f"{text}{f', reward {outcome.reward:g}' if outcome.reward else ''}{', over' if outcome.over else ''}"
