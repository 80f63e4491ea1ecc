"""Answers of a process that judges or plays, and when they are too late."""

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from rl.verifiers.isolation import channel as module
from rl.verifiers.isolation.channel import Channel, LostError


@pytest.fixture
def answered() -> threading.Event:
    return threading.Event()


@pytest.fixture
def ours(answered: threading.Event) -> Iterator[Channel]:
    """Its other end answers at once."""
    one, other = socket.socketpair()

    def answer() -> None:
        asked = json.loads(other.recv(10_000)[4:])
        said = json.dumps({"number": asked["number"], "said": 42}).encode()
        other.sendall(len(said).to_bytes(4, "big") + said)
        answered.set()

    thread = threading.Thread(target=answer)
    thread.start()
    yield Channel(one, lambda: True)
    thread.join()
    one.close()
    other.close()


def test_an_answer_that_came_while_we_were_stopped_is_one(
    ours: Channel, answered: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(range(0, 10_000, 100))  # whenever we look, the deadline is over

    def later() -> float:
        now = next(times)
        assert not now or answered.wait(10)
        return now

    monkeypatch.setattr(module.time, "monotonic", later)
    assert ours.call({}, 2.0) == {"said": 42}


def test_none_is_a_time_out() -> None:
    one, other = socket.socketpair()
    with one, other, pytest.raises(LostError) as lost:
        Channel(one, lambda: True).call({}, 0.1)
    assert lost.value.args == ("timeout", "took longer than 0.1 s")
