"""Commands in this process that end with a line."""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.cli import main
from infra.security.identity import own_certificates


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Gives a command and returns what it says after "rlvf: "; it writes nothing and starts nothing."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, code: int = 2) -> str:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(SystemExit) as stopped:
            main(words)
        printed = capsys.readouterr()
        assert stopped.value.code == code, printed.err
        assert printed.out == ""
        assert printed.err.startswith("rlvf: ")
        assert printed.err.count("\n") == 1
        assert printed.err.endswith("\n")
        assert sorted(tmp_path.rglob("*")) == before
        return printed.err[len("rlvf: ") : -1]

    return run


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of the machine of the scheduler."""
    home = tmp_path_factory.mktemp("first")
    own_certificates(home)
    return home


@pytest.fixture
def own_signals_and_environment() -> Iterator[None]:
    """What a command in this process changes of them is undone."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    hook, environment = sys.excepthook, dict(os.environ)
    yield
    sys.excepthook = hook
    for number, handler in before.items():
        signal.signal(number, handler)
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
