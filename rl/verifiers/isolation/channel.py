"""Questions to a process that is not trusted, and its answers, over a socket: 4 bytes of length, and JSON."""

import json
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

POLL_SECONDS = 0.25  # how often a call under way is looked after
MAX_ANSWER = 2**20  # bytes


class LostError(Exception):
    """A call that got no answer; the arguments are a reason and one line."""


class ClosedError(Exception):
    """The process at the other end has gone."""


class Channel:
    """Our end of the socket. One thread at a time may call it."""

    def __init__(self, ours: socket.socket, runs: Callable[[], bool]) -> None:
        """``runs``: whether the process is there. A copy that it left behind may hold its end open."""
        self._socket, self._runs = ours, runs

    def call(self, message: dict[str, Any], seconds: float, files: Sequence[int] = ()) -> dict[str, Any]:
        """The answer to a message, which takes open files along. Raises ClosedError, and LostError, also for one that
        does not repeat the message's number or has anything behind it: code that is judged may have got at the
        socket."""
        deadline = time.monotonic() + seconds
        number = secrets.token_hex(16)
        content = json.dumps({**message, "number": number}).encode()
        try:
            self._socket.settimeout(seconds)
            length = len(content).to_bytes(4, "big")
            if files:
                socket.send_fds(self._socket, [length], files)
            self._socket.sendall(content if files else length + content)
            count = int.from_bytes(self._receive(4, deadline, seconds), "big")
            if count > MAX_ANSWER:
                raise LostError("verifier_error", "sent an answer that is too long")
            answer = json.loads(self._receive(count, deadline, seconds))
        except TimeoutError:
            raise LostError("timeout", f"took longer than {seconds:g} s") from None
        except OSError:
            raise ClosedError from None
        except (ValueError, RecursionError):
            raise LostError("verifier_error", "sent an answer that is no JSON") from None
        if not isinstance(answer, dict):
            raise LostError("verifier_error", "sent an answer that is no object")
        if answer.pop("number", None) != number or not self.is_silent():
            raise LostError("verifier_error", "sent what is no answer to the completion that it was asked about")
        return answer

    def is_silent(self) -> bool:
        """Whether nothing waits in the socket: what comes unasked is an answer to no question."""
        try:
            self._socket.setblocking(False)
            return not self._socket.recv(1)
        except BlockingIOError:
            return True
        except OSError:  # closed, as the next call will tell
            return True

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _receive(self, count: int, deadline: float, seconds: float) -> bytes:
        content = bytearray()
        while len(content) < count:
            left = max(0.0, deadline - time.monotonic())
            self._socket.settimeout(min(POLL_SECONDS, left))
            try:
                piece = self._socket.recv(count - len(content))
            except BlockingIOError:  # nothing is there; what came while we were stopped ourselves would be
                raise LostError("timeout", f"took longer than {seconds:g} s") from None
            except TimeoutError:
                if not self._runs():
                    raise ClosedError from None
                continue
            if not piece:
                raise ClosedError
            content += piece
        return bytes(content)
