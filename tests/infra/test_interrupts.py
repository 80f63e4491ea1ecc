"""Signals that are put off, sent to this very process."""

import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from infra.interrupts import answered_by, put_off
from tests.processes import started, terminal, until


def test_ctrl_c_takes_effect_at_the_end() -> None:
    done: list[str] = []

    def work() -> None:
        with put_off():
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_handlers_are_those_of_before() -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        with put_off(), put_off():
            signal.raise_signal(signal.SIGTERM)
            assert came == []
        assert came == [signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)
        assert came == [signal.SIGTERM] * 2
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_error_inside_is_not_lost() -> None:
    def work() -> None:
        with put_off():
            signal.raise_signal(signal.SIGINT)
            raise OSError("no disk")

    with pytest.raises(KeyboardInterrupt) as caught:
        work()
    assert isinstance(caught.value.__context__, OSError)


def test_another_thread_leaves_the_signals_alone() -> None:
    inside: list[object] = []

    def work() -> None:
        with put_off():
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [signal.default_int_handler]


def test_the_first_signal_stops_the_work_and_takes_effect_at_the_end() -> None:
    stopped = threading.Event()
    done: list[str] = []

    def work() -> None:
        with answered_by(stopped.set) as came:
            signal.raise_signal(signal.SIGINT)
            assert stopped.wait(90)  # in another thread: this one was not interrupted
            done.append("all of it")
            assert list(came) == [signal.SIGINT]

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_signal_takes_effect_at_once() -> None:
    def work() -> None:
        with answered_by(lambda: None):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            raise AssertionError("not reached")

    with pytest.raises(KeyboardInterrupt):
        work()


def test_without_a_signal_nothing_is_stopped_and_no_thread_stays() -> None:
    stopped = threading.Event()
    before = threading.active_count()
    with answered_by(stopped.set) as came:
        assert list(came) == []
    assert not stopped.is_set()
    assert threading.active_count() == before


def test_what_stops_may_need_a_lock_that_the_interrupted_work_holds() -> None:
    lock, stopped = threading.Lock(), threading.Event()

    def stop() -> None:
        with lock:
            stopped.set()

    def work() -> None:
        with answered_by(stop):
            with lock:
                signal.raise_signal(signal.SIGINT)
            assert stopped.wait(90)

    with pytest.raises(KeyboardInterrupt):
        work()


def test_a_signal_that_does_not_end_the_wait_for_something_stops_the_work() -> None:
    stopped = threading.Event()
    in_time: list[bool] = []

    def interrupt() -> None:
        time.sleep(0.2)  # the main thread waits; it is told of a signal that another thread got when it has waited
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    def work() -> None:
        with answered_by(stopped.set):
            threading.Thread(target=interrupt).start()
            in_time.append(stopped.wait(10))

    with pytest.raises(KeyboardInterrupt):
        work()
    assert in_time == [True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_what_a_background_job_ignores_stops_nothing(number: signal.Signals) -> None:
    stopped = threading.Event()
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with answered_by(stopped.set) as came:
            signal.raise_signal(number)
            assert list(came) == []
        assert not stopped.is_set()
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


CLOSED = """
import signal
import sys
import time
from infra.interrupts import answered_by

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGHUP, interrupt)
try:
    with answered_by(lambda: None) as came:
        print("begun", flush=True)
        while not came:
            time.sleep(0.01)
        signal.raise_signal(signal.SIGHUP)  # the second one
        print("said to nobody", flush=True)
        print("nor this", file=sys.stderr, flush=True)
    print("not reached: the first one takes effect now")
except KeyboardInterrupt:
    print("ended")
    sys.exit(130)
"""


def test_work_ends_in_order_when_its_terminal_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("RLVF_HOME", str(home))
    with terminal() as window, started(sys.executable, "-c", CLOSED, **window.streams) as process:
        until(lambda: "\n" in window.read())  # the whole line: a terminal hands its end on apart
        window.close()
        assert process.wait(60) == 130
    assert (home / "logs" / "hangup.log").read_text() == "said to nobody\nnor this\nended\n"
