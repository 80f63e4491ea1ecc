"""The command `rlvf`. Results go to stdout, everything else to stderr; a user's mistake is one line and exit code 2."""

import os
import select
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pkgutil import iter_modules
from types import FrameType, TracebackType

import flows.commands as room
from flows.commands.command import Command, say
from flows.commands.parser import OneLineParser
from infra.cluster.settings import MEASURED, measured_file
from infra.interrupts import leave_terminal, put_off
from infra.security.printable import printable
from infra.security.secrets import masked
from infra.storage.faults import explained

FIRST = (
    "train",
    "sft",
    "dpo",
    "reward-model",
    "runs",
    "eval",
    "sample",
    "export",
    "report",
    "up",
    "down",
    "status",
    "worker",
    "certs",
    "doctor",
)  # in help, then others


@cache
def commands(word: str = "") -> list[Command]:
    """The command that is called `word`, whose module alone is imported then: all take a second. Where none is, all of
    them, which help lists and a typo is compared with: of each module in `flows/commands` that has a ``COMMAND``."""
    modules = [module.name for module in iter_modules(room.__path__)]
    if word == "--version":
        return []
    module = word.replace("-", "_")
    if module in modules and (named := _command(module)) is not None and named.name == word:
        return [named]
    found = [command for name in modules if (command := _command(name)) is not None]
    return sorted(found, key=lambda each: FIRST.index(each.name) if each.name in FIRST else len(FIRST))


def _command(module: str) -> Command | None:
    return getattr(import_module(f"{room.__name__}.{module}"), "COMMAND", None)


def parser(known: Sequence[Command]) -> OneLineParser:
    """The command line of these commands."""
    top = OneLineParser(prog="rlvf", description="Reinforcement learning with verifiable reward on your own machines.")
    top.add_argument("--version", action="version", version=f"rlvf {version('rlvf')}", help="which version this is")
    names = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for each in known:
        command = names.add_parser(
            each.name,
            help=each.summary,
            description=f"{each.summary[0].upper()}{each.summary[1:]}.",
            examples=each.examples,
            first=each.first,
        )
        each.options(command)
    return top


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command; exits with 0, 1 (it failed), 2 (the user's mistake), 130 (interrupted), or 141, in silence, where
    nobody reads stdout any more, as after `| head`."""
    try:
        try:
            _main(argv)
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        if not _nobody_reads():
            raise
        _write_no_more()
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if os.environ.get("RLVF_TRACEBACK"):
            raise
        _write_no_more()
        say(f"the output cannot be written: {error.strerror or error}")
        sys.exit(1)


def _main(argv: Sequence[str] | None) -> None:
    os.environ["PYTHONSAFEPATH"] = "1"  # no process started from here imports from the working directory
    try:
        with put_off():  # an import is no place for an interrupt
            asked = commands(*(sys.argv[1:] if argv is None else argv)[:1])
            top = parser(asked)
    except KeyboardInterrupt:
        sys.exit(130)
    given = top.parse_args(argv)
    (command,) = [each for each in asked if each.name == given.command]
    sys.excepthook = _traceback
    signal.signal(signal.SIGTERM, _interrupt)  # an orderly end, as for Ctrl-C
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _interrupt)
    try:
        with suppress(ValueError):  # a command that needs the home says what is wrong with it
            os.environ.setdefault(MEASURED, measured_file())
        command.run(given)
    except ValueError as error:
        if os.environ.get("RLVF_TRACEBACK"):
            raise
        top.error(masked(str(error)))
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            raise
        known = explained(error)
        if os.environ.get("RLVF_TRACEBACK") or not (known or isinstance(error, OSError | RuntimeError)):
            raise
        said = "; ".join(masked(known or str(error)).split("\n")) or type(error).__name__
        say(f"{said} (set RLVF_TRACEBACK=1 for the whole story)")
        sys.exit(1)


def _write_no_more() -> None:
    """The interpreter flushes stdout at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _nobody_reads() -> bool:
    if sys.stdout is None:
        return False
    output = select.poll()
    output.register(sys.stdout, select.POLLOUT)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))


def _traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback as the interpreter does, but printable."""
    print(printable("".join(traceback.format_exception(kind, error, trace)), lines=True), end="", file=sys.stderr)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    if number == signal.SIGHUP:
        leave_terminal()
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
