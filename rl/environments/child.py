"""The process that holds an environment's class, and forks one for each episode;
`rl.verifiers.isolation.supervisor` starts it.

Arguments and messages are those of `rl.verifiers.isolation.child`. The first one says what to load and the limits; its
answer is {"tools", "step"} or {"error"}. Then {"open": key}, with a socket, whose answer is {"pid"}, and {"end": pid},
whose answer says how the process ended, {"exit"} or {"signal"}. By its own socket an episode is asked
{"reset": columns}, {"act": action} and {"reward": true}, and answers as `instance.Instance` does, or by {"error"}.

An episode's process has the memory that this one had after it had run the file, and from then on one of its own. Where
the kernel has Landlock, it writes to a folder of its own alone, and reaches no process that is not below it: no other
episode, and not this one, whose copy of the class is the next one's.
"""

import gc
import os
import secrets
import shutil
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from rl.environments.instance import Instance, seed
from rl.environments.interface import ContractError, Interface, interface_of
from rl.environments.turn import of_json
from rl.verifiers.isolation import landlock
from rl.verifiers.isolation.child import bound, confined, described, executed, log, receive, send
from rl.verifiers.isolation.confinement import die_with_parent, is_linux
from rl.verifiers.isolation.shown import Tree, shown

SHARED = ("/dev/shm",)  # that every process of the sandbox may write to


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    asked = confined(channel)
    if asked is None:
        return
    me = os.getpid()
    try:
        cls = _class(executed(asked["text"], asked["file"]), asked["class"], asked["limits"])
        interface = interface_of(cls)
        loaded = asdict(interface)
    except ContractError as error:
        loaded = {"error": f"{asked['file']}: {error}"}
    except BaseException as error:  # noqa: BLE001  SystemExit too: whatever it does is told
        loaded = {"error": described(error, asked["file"])}
        log(error, asked["file"])
    if os.getpid() != me:
        os._exit(0)  # the file forked
    send(channel, asked["number"], loaded)
    if "error" not in loaded:
        _Episodes(channel, cls, interface, asked).serve()


class _Episodes:
    """The processes of the episodes that are open."""

    def __init__(self, channel: socket.socket, cls: type, interface: Interface, asked: dict[str, Any]) -> None:
        self._channel, self._class, self._interface, self._asked = channel, cls, interface, asked
        self._folders: dict[int, Path] = {}
        self._around = Path.cwd()
        # as the view of an episode's process begins; where the sandbox around it shows less, that holds
        closed = [str(self._around), *SHARED]
        apart = is_linux() and asked["confinement"]["sandbox"] != "none" and landlock.abi() > 0
        self._trees = [one.path for one in shown(closed, asked["keeps"]) if isinstance(one, Tree)] if apart else None

    def serve(self) -> None:
        gc.collect()
        gc.freeze()  # what is shared with every episode is not written to
        while True:
            given, files = receive_with_files(self._channel)
            if "open" in given:
                send(self._channel, given["number"], {"pid": self._fork(given["open"], files)})
            else:
                send(self._channel, given["number"], self._end(given["end"]))

    def _fork(self, key: str, files: list[int]) -> int:
        folder = self._around / secrets.token_hex(16)  # a name that no other episode guesses, or may list
        folder.mkdir(mode=0o700)
        sys.stdout.flush()
        me = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                self._channel.close()
                die_with_parent(me)
                self._play(socket.socket(fileno=files[0]), folder, key)
            except OSError as error:
                log(error, key)
            finally:
                os._exit(1)
        for file in files:
            os.close(file)
        self._folders[pid] = folder
        return pid

    def _end(self, pid: int) -> dict[str, int]:
        for kill in (os.killpg, os.kill):  # it may not lead a group yet
            with suppress(OSError):
                kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        with suppress(OSError, RecursionError):  # what stays counts as the sandbox's
            shutil.rmtree(self._folders.pop(pid))
        return {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"exit": os.WEXITSTATUS(status)}

    def _play(self, channel: socket.socket, folder: Path, key: str) -> None:
        """Answer for one episode, in its own process, until it is ended."""
        os.setsid()
        channel.set_inheritable(False)  # programs that the environment runs would answer in its place
        os.environ["TMPDIR"] = str(folder)
        os.chdir(folder)
        if self._trees is not None:
            landlock.restrict(landlock.rules(folder, self._trees, network=True))  # TCP is closed by the one around it
        me, file = os.getpid(), self._asked["file"]
        instance: Instance | None = None
        while True:
            given = receive(channel)
            bound(self._asked["seconds"], self._asked["max_log"])
            try:
                if instance is None:
                    seed(key)
                    instance = Instance(self._class, self._interface)
                answer = _answered(instance, given)
            except BaseException as error:  # noqa: BLE001
                answer = {"error": described(error, file)}
                log(error, key)
            if os.getpid() != me:
                os._exit(0)  # the environment forked: this is the copy
            send(channel, given["number"], answer)


def _answered(instance: Instance, given: dict[str, Any]) -> dict[str, Any]:
    if "reset" in given:
        return instance.reset(given["reset"])
    return instance.act(of_json(given["act"])) if "act" in given else instance.reward()


def receive_with_files(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message, and the open files that came along; the process ends when there is none any more."""
    length, files, _, _ = socket.recv_fds(channel, 4, 1)
    return receive(channel, length), files


def _class(module: ModuleType, name: str, limits: dict[str, float]) -> type:
    found = module.__dict__.get(name)
    if not isinstance(found, type):
        raise ContractError(f"has no class {name}" if found is None else f"{name} is no class")
    for limit, read in limits.items():
        if (value := getattr(found, limit, read)) != read:
            raise ContractError(f"{name}.{limit} is {value!r}, but it reads as {read:g}; write it as a number there")
    return found


if __name__ == "__main__":
    main()
