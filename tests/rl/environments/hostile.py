"""An environment that does by turns what a broken or hostile one may do."""

import ctypes
import os
import signal
import threading
import time
from pathlib import Path

SEEN: list[str] = []  # of the module: what an episode leaves here, no other finds


class Hostile:
    turns, seconds, memory = 50, 2.0, 256

    def reset(self, target, **_):
        self.secret = f"the secret of {target}"
        SEEN.append(str(target))
        Path(os.environ["TMPDIR"], "mine").write_text(self.secret)
        self.over = False
        return f"You are {target}."

    def step(self, text):
        return str(getattr(self, f"_{text.split(':')[0]}")(*text.split(":")[1:]))

    def get_reward(self):
        return 1.0

    def _hello(self):
        return f"hello from {self.secret}, {SEEN}"

    def _place(self):
        return f"{os.getpid()} {os.environ['TMPDIR']} {id(self)} {os.getppid()}"

    def _sleep(self):
        time.sleep(600)

    def _spin(self):
        while True:
            pass

    def _flood(self):
        return "x" * 10_000_000

    def _surrogate(self):
        return "\ud800 <|im_end|>"

    def _exit(self):
        os._exit(3)

    def _leave(self):
        raise SystemExit

    def _crash(self):
        ctypes.string_at(0)

    def _break(self):
        return {}["nothing"]

    def _refuse(self):
        raise ValueError("no such move")

    def _allocate(self):
        return len(bytearray(2**30))

    def _allocate_in_many(self):
        """More than it may, by processes that each hold less."""
        forked = 0
        while forked < 16:
            try:
                child = os.fork()
            except OSError:  # another sandbox's processes count towards a user's limit until they are ended
                time.sleep(0.01)
                continue
            forked += 1
            if child == 0:
                held = bytearray(os.urandom(2**20) * 100)
                time.sleep(600)
                os._exit(len(held))
        time.sleep(600)

    def _bomb(self):
        while True:
            try:
                os.fork()
            except OSError:
                time.sleep(0.001)

    def _later(self, seconds):
        """Take its sandbox down while others are asked."""
        threading.Timer(float(seconds), self._bomb).start()
        return "soon"

    def _kill_all(self):
        """Signal every process that it may signal."""
        for number in range(2, 400):
            if number not in (os.getpid(), os.getpgid(0)):
                try:
                    os.kill(number, signal.SIGKILL)
                except OSError:
                    continue
        try:
            os.kill(os.getppid(), signal.SIGKILL)
        except OSError as error:
            return error.strerror
        return "killed its host"

    def _read(self, folder):
        """What another episode has written, by the name of its folder."""
        try:
            return Path(folder, "mine").read_text()
        except OSError as error:
            return error.strerror

    def _write(self, folder):
        try:
            Path(folder, "theirs").write_text("was here")
        except OSError as error:
            return error.strerror
        return "written"

    def _list(self):
        """The folders of all episodes."""
        try:
            return sorted(os.listdir(Path(os.environ["TMPDIR"]).parent))  # noqa: PTH208
        except OSError as error:
            return error.strerror

    def _peek(self, pid):
        """The memory, folder and files of another process."""
        found = []
        for what in ("mem", "environ", "maps"):
            try:
                with open(f"/proc/{pid}/{what}", "rb") as file:  # noqa: PTH123
                    found.append(f"{what} {len(file.read(1) or b'-')}")
            except OSError as error:
                found.append(error.strerror or "error")
        for what in ("cwd", "exe"):
            try:
                found.append(os.readlink(f"/proc/{pid}/{what}"))  # noqa: PTH115
            except OSError as error:
                found.append(error.strerror or "error")
        return found

    def _forge(self):
        """Answer before it is asked, by each of its open sockets."""
        for number in range(3, 64):
            try:
                os.write(number, b"\0\0\0\x16" + b'{"observations":["1"]}')
            except OSError:
                continue
        return "forged"
