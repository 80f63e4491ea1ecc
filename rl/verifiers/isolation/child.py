"""The process that runs a function of the user's; `rl.verifiers.isolation.supervisor` starts it. Of rlvf it imports
what confines it, nothing else.

Arguments: the descriptor of a socket, the folder to work in, how many processes its user may have, the descriptor of a
socket to its supervisor. Messages are 4 bytes of length and JSON. The first one says what to load and the limits, its
answer is {} or {"error"}; each further one is {"problem", "completion"}, its answer {"reward", "reason", "parts"} or
{"error"}; "retire" asks for a new process. Each message has a "number" that its answer repeats: what others write into
the socket answers nothing.
"""

import inspect
import json
import linecache
import math
import os
import resource
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from types import CodeType, ModuleType
from typing import Any

from rl.verifiers.isolation.confinement import Confinement, confine
from rl.verifiers.isolation.interpreter import View
from rl.verifiers.parts import MAX_PARTS, MAX_REASON, MAX_REWARD, TAKEN, is_part_name

MAX_ERROR = 300
OF_COMPLETION = frozenset(
    "completion response answer solution output prediction predicted pred generated generation reply text".split()
)
OF_PROBLEM = frozenset(
    "problem prompt question target truth groundtruth gt reference ref label expected gold row example key".split()
)


class _Fields:
    def __getitem__(self, name: object) -> Any:
        raise TypeError(f"a problem is no dict: write problem.extra[{name!r}], or problem.prompt and problem.target")


@dataclass(frozen=True)
class Problem(_Fields):
    """What the user's function gets."""

    prompt: str
    target: str
    source: str
    extra: dict[str, Any]  # further columns of the problem's file


@dataclass(frozen=True)
class ProblemWithoutTarget(_Fields):
    """The same of a file without such a column: a function that compares with nothing would find everything right."""

    prompt: str
    source: str
    extra: dict[str, Any]
    no_target: str  # why

    @property
    def target(self) -> str:
        raise AttributeError(self.no_target)


def problem_of(given: dict[str, Any]) -> Problem | ProblemWithoutTarget:
    """What the function gets, of what was sent."""
    if "no_target" not in given:
        return Problem(**given)
    return ProblemWithoutTarget(**{name: value for name, value in given.items() if name != "target"})


def main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    asked = confined(channel)
    if asked is None:
        return
    _die_with(channel)  # not before: what a process gives up, a thread that it has already keeps
    me = os.getpid()
    function = None
    try:
        function = load(asked["text"], asked["file"], asked["function"])
        loaded = {}
    except BaseException as error:  # noqa: BLE001  SystemExit too: whatever it does is told
        loaded = {"error": described(error, asked["file"])}
        log(error, asked["file"])
    if os.getpid() != me:
        os._exit(0)  # the file forked
    send(channel, asked["number"], loaded)
    while function is not None:
        given = receive(channel)
        bound(asked["seconds"], asked["max_log"])
        answer: dict[str, Any]
        try:
            answer = verdict(function(problem_of(given["problem"]), given["completion"]))
        except BaseException as error:  # noqa: BLE001
            answer = {"error": described(error, asked["file"]), "retire": isinstance(error, MemoryError)}
            log(error, given["problem"]["source"])
        if os.getpid() != me:
            os._exit(0)  # the function forked: this is the copy
        send(channel, given["number"], answer)


def confined(channel: socket.socket) -> dict[str, Any] | None:
    """The first message, in a process that is confined by now; None where it cannot be, which is told."""
    channel.set_inheritable(False)  # programs that the function runs would answer in its place
    asked: dict[str, Any] = receive(channel)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    folder, processes, asks = sys.argv[2], int(sys.argv[3]), socket.socket(fileno=int(sys.argv[4]))
    os.environ["TMPDIR"] = folder
    told = {**asked["confinement"], "view": View(**asked["confinement"].get("view", {}))}
    try:
        with asks:
            confine(Confinement(folder=folder, processes=processes, memory_mb=asked["memory_mb"], **told), asks)
        os.chdir(folder)
    except OSError as error:
        send(channel, asked["number"], {"error": f"{asked['file']} cannot be judged apart: {error.strerror or error}"})
        return None
    return asked


def executed(text: str, file: str) -> ModuleType:
    """The module that a file makes."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    code: CodeType = compile(text, file, "exec", dont_inherit=True)
    module = ModuleType("verifier")
    module.__file__ = file
    sys.modules["verifier"] = module  # where dataclasses and pickle look for it
    exec(code, module.__dict__)
    return module


def load(text: str, file: str, function: str) -> Any:
    """Run the file and return its function."""
    module = executed(text, file)
    found = module.__dict__.get(function)
    if not callable(found):
        raise TypeError(f"{function} is no function")
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # written in C
        return found
    try:
        signature.bind(None, "")
    except TypeError as error:
        raise TypeError(f"{function}{signature} is called as {function}(problem, completion): {error}") from None
    # a wrapper is what is called; one of *args, or written in C, passes them on
    names = _positional(found, follow_wrapped=False) or _positional(found, follow_wrapped=True)
    if _means(names[:1], OF_COMPLETION, OF_PROBLEM) or _means(names[1:2], OF_PROBLEM, OF_COMPLETION):
        raise TypeError(
            f"{function}({', '.join(names[:2])}) is given the problem first, then the completion; "
            f"write: def {function}(problem, completion), with problem.target for what is expected"
        )
    return found


def verdict(returned: Any) -> dict[str, Any]:
    """What the function returned, checked: a number, or parts by name whose sum is the reward; with a reason, if it
    likes. Our own verifiers give (reward, reason, parts)."""
    value, reason = returned, None
    parts: Any = {}
    if isinstance(returned, tuple):
        if len(returned) not in (2, 3):
            raise TypeError(f"returned a tuple of {len(returned)}; give (reward, reason)")
        value, reason, *more = returned
        parts = more[0] if more else {}
    if isinstance(value, dict):
        value, parts = None, value
    if not isinstance(parts, dict) or len(parts) > MAX_PARTS:
        raise TypeError(f"returned {_short(parts)} as parts; give at most {MAX_PARTS} by name")
    checked = {}
    for name, part in parts.items():
        if not is_part_name(name):
            raise ValueError(f"returned a part called {_short(name)}; use a short word other than {', '.join(TAKEN)}")
        checked[name[:MAX_REASON]] = _number(part, f"as part {name!r}")
    if value is None and parts:
        total = math.fsum(checked.values())
        value = round(total) if math.isclose(total, round(total), abs_tol=1e-9) else total
    reward = _number(value, "")
    if reason is None:
        # of any other number it is not known what it means: it may be a penalty, or more than enough
        reason = "right" if reward == 1 else "wrong" if reward == 0 else "graded"
    if not isinstance(reason, str):
        raise TypeError(f"returned {_short(reason)} as reason; give a short text")
    return {"reward": reward, "reason": reason[:MAX_REASON], "parts": checked}


def described(error: BaseException, file: str) -> str:
    """One line: what was raised, and the line of the user's file that it came from."""
    place = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        place = [error.lineno]
    try:
        said = " ".join(str(error).split())
    except BaseException:  # noqa: BLE001
        said = "(its text cannot be made)"
    line = f"{type(error).__name__}: {said}" if said else type(error).__name__
    return f"{file}:{place[-1]}: {line}"[:MAX_ERROR] if place else f"{file}: {line}"[:MAX_ERROR]


def receive(channel: socket.socket, begun: bytes = b"") -> Any:
    """The next message, whose first bytes, 4 at most, have come; the process ends when there is none any more."""
    length = begun + _exactly(channel, 4 - len(begun))
    return json.loads(_exactly(channel, int.from_bytes(length, "big")))


def send(channel: socket.socket, number: str, answer: dict[str, Any]) -> None:
    text = json.dumps({**answer, "number": number}, ensure_ascii=False)
    content = text.encode(errors="backslashreplace")  # half a character as JSON escapes it
    channel.sendall(len(content).to_bytes(4, "big") + content)


def _exactly(channel: socket.socket, count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        piece = channel.recv(count - len(content))
        if not piece:
            os._exit(0)
        content += piece
    return bytes(content)


def _positional(function: Any, follow_wrapped: bool) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    with suppress(TypeError, ValueError):  # written in C
        parameters = inspect.signature(function, follow_wrapped=follow_wrapped).parameters
        return [name for name, one in parameters.items() if one.kind in kinds]
    return []


def _means(names: list[str], meant: frozenset[str], other: frozenset[str]) -> bool:
    """Whether a name has a word of one kind (in the plural too) and none of the other; `problem_text` is a problem."""
    words = {word.removesuffix("s") for name in names for word in name.lower().split("_")}
    words = words - {"text"} or words
    return bool(words & meant) and not words & other


def _number(value: Any, what: str) -> float:
    if isinstance(value, list) and not what:
        raise TypeError(
            f"returned {_short(value)}; it is called for one completion at a time, and a reward is a number"
        )
    if isinstance(value, str | bytes) or value is None or not hasattr(value, "__float__"):
        raise TypeError(f"returned {_short(value)} {what}".rstrip() + "; a reward is a number")
    number = float(value)
    if not abs(number) <= MAX_REWARD:
        raise ValueError(f"returned {number} {what}".rstrip() + f"; a reward is finite, at most {MAX_REWARD:.0e}")
    return number


def _short(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


def log(error: BaseException, about: str) -> None:
    """Print the whole traceback, beside what the function has printed."""
    with suppress(BaseException):
        print(f"{about}:", "".join(traceback.format_exception(error)), file=sys.stderr)


def bound(seconds: float, most_logged: int) -> None:
    """Bound the processor time of what follows, and begin the log anew where it has more than so many bytes."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = math.ceil(used.ru_utime + used.ru_stime + seconds) + 1
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    with suppress(OSError):
        if os.fstat(1).st_size > most_logged:
            os.ftruncate(1, 0)


def _die_with(channel: socket.socket) -> None:
    """End this process and what it started when the other end of the socket is gone, even in the middle of a call."""

    def wait() -> None:
        waiting = select.poll()
        waiting.register(channel, 0)  # nothing but the hang-up
        while not any(events & (select.POLLHUP | select.POLLERR) for _, events in waiting.poll(1000)):
            pass
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=wait, name="parent", daemon=True).start()


if __name__ == "__main__":
    main()
