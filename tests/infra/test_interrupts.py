"""Signals that are put off, sent to this very process."""

import signal
import threading

import pytest

from infra.interrupts import put_off


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
