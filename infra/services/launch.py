"""The process that a Prefect worker starts for a run: it runs Prefect's engine in a child, and reports why that ended.

    python -P -m infra.services.launch flows.train:train

A run that ends before its flow begins (an import that fails), or whose process is killed, leaves its cause in the
worker's log alone, and `Crashed` on the page. Here its last state has the cause in its message and, as long as
`--watch` may ask for it, in its name. And Python does not import from the run's working directory, as Prefect's own
command makes it do, where a `tasks.py` or `random.py` of a user is taken for ours or the standard library's.

The two processes share a socket: the engine's writes its error there before it ends, and ends when this one has.
"""

import importlib
import logging
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from infra.services.settled import import_prefect

FLOW_RUN = "PREFECT__FLOW_RUN_ID"  # Prefect's names
ENTRYPOINT = "PREFECT__FLOW_ENTRYPOINT"
LONGEST = 300  # characters of a cause
NAMED_SECONDS = 15.0  # `--watch` reads the name of the last state 3 s after the last news; then the page filters by it


def main() -> None:
    """Run the flow of the environment's flow run; exit 0 when its state has the cause of its end."""
    *engine, entrypoint = sys.argv[1:]
    if engine:
        _engine(socket.socket(fileno=int(engine[0])), entrypoint)
    else:
        sys.exit(_watched(entrypoint))


def _watched(entrypoint: str) -> int:
    """Run the engine, pass signals on, report the cause of its death to Prefect; the exit code."""
    ours, its = socket.socketpair()
    os.set_inheritable(its.fileno(), True)
    command = [sys.executable, "-P", "-m", "infra.services.launch", str(its.fileno()), entrypoint]
    asked: list[int] = []
    cause = ""
    engine: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, _: FrameType | None) -> None:
        asked.append(number)
        if engine is not None:
            engine.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.signal(signal.SIGINT, lambda number, _: asked.append(number))  # of a terminal, which tells the engine too
    engine = subprocess.Popen(command, pass_fds=[its.fileno()])
    if signal.SIGTERM in asked:  # it came while the engine was being started
        engine.terminate()
    its.close()
    code = engine.wait()
    if asked:
        return code if code >= 0 else 128 - code
    ours.setblocking(False)
    with suppress(BlockingIOError):  # it said nothing, and something that it has started lives on
        cause = ours.recv(4 * LONGEST).decode(errors="replace")
    if code < 0 and not cause:
        cause = f"its process was ended by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            cause += "; where nobody did that, the machine was out of memory"
    try:
        _tell(cause or f"its process ended with exit code {code}", code, asked)
    except (OSError, ValueError) as error:
        print(f"rlvf: Prefect was not told why the run ended: {error}", file=sys.stderr)
        return code if code >= 0 else 128 - code
    return 0


def _tell(cause: str, code: int, asked: Sequence[int]) -> None:
    """Put the cause into the run's state, and into its name for `NAMED_SECONDS`. Raises `OSError`."""
    from infra.home import rlvf_home
    from infra.security.printable import printable
    from infra.security.secrets import masked
    from infra.services.prefect_server import prefect_api

    api = prefect_api(rlvf_home(), os.environ["PREFECT_API_URL"])
    run = os.environ[FLOW_RUN]
    if code:
        api.crashed(run, printable(masked(cause))[:LONGEST])
    elif not api.says_a_cause(run):
        return
    until = time.monotonic() + NAMED_SECONDS
    while time.monotonic() < until and not asked:
        time.sleep(0.2)
    api.name_plainly(run)


def _engine(watcher: socket.socket, entrypoint: str) -> None:
    """Run the engine here, and write an error that ends it to the watcher."""
    os.set_inheritable(watcher.fileno(), False)
    threading.Thread(target=_end_with, args=(watcher,), name="watcher", daemon=True).start()
    try:
        import_prefect()
        logging.getLogger("prefect.flow_runs").addFilter(_in_one_line)
        importlib.import_module(entrypoint.partition(":")[0])
        os.environ[ENTRYPOINT] = entrypoint
        sys.argv = ["prefect.engine"]
        runpy.run_module("prefect.engine", run_name="__main__")
    except SystemExit as ending:
        if ending.code:
            _confess(watcher, ending.__context__ or ending)
        raise
    except BaseException as error:
        _confess(watcher, error)
        raise


def _in_one_line(record: logging.LogRecord) -> bool:
    """A refusal is one line in the log, as on the command line."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, ValueError) and not os.environ.get("RLVF_TRACEBACK"):
        record.exc_info = None
    return True


def _end_with(watcher: socket.socket) -> None:
    """End this process when the watcher's has ended: that one alone is known to whoever stops a run."""
    with suppress(OSError):
        watcher.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


def _confess(watcher: socket.socket, error: BaseException) -> None:
    last = traceback.format_exception_only(error)[-1].strip().partition("\n")[0]
    at = traceback.extract_tb(error.__traceback__)
    where = f" ({at[-1].filename}:{at[-1].lineno})" if at else ""
    with suppress(OSError):
        watcher.sendall(f"{last}{where}".encode()[: 4 * LONGEST])


if __name__ == "__main__":
    main()
