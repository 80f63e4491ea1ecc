"""Versions that a reader has pinned, while a trainer publishes, on every kind of store."""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest

from infra.storage import place as places
from infra.storage.manifest import NotThere
from infra.weights import pin
from infra.weights.chain import cheapest_chain, read_edges
from infra.weights.pin import Pins, newest_pinned
from infra.weights.publisher import Publisher
from infra.weights.version import Gone, newest_version
from tests.infra.weights.versions import fresh, publish_all, same, version
from tests.processes import started, until

pytestmark = pytest.mark.usefixtures("impatient")
HOLDER = (
    "import sys, time; from infra.weights.pin import newest_pinned\nwith newest_pinned(sys.argv[1]): time.sleep(600)"
)


def pins(place: str) -> list[str]:
    return [name for name in places.names(f"{place}/pins") if not name.endswith(".tmp")]  # half-written


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pin, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(pin, "DEAD_SECONDS", 1.0)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_pinned_version_stays_while_its_reader_lives_and_goes_when_it_is_done(
    place: str, open_publisher: Callable[..., Publisher]
) -> None:
    writer = open_publisher()
    publish_all(writer, range(10))
    with newest_pinned(place) as pinned:
        assert pinned == newest_version(place)
        publish_all(writer, range(10, 20))
        time.sleep(1.5)  # its heart beats
        publish_all(writer, range(20, 28))  # past an anchor, from which on other chains begin anew
        with fresh(place).at(pinned) as weights:
            assert same(weights, version(9))
        assert len(pins(place)) == 1
    assert pins(place) == []
    publish_all(writer, range(28, 29))
    with pytest.raises(Gone, match="was removed: the newest version is v28"), fresh(place).at(pinned):
        pass
    assert len(read_edges(f"{place}/weights")) <= 14


def test_the_pin_of_a_killed_reader_is_removed_and_so_is_its_version(
    place: str, open_publisher: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_publisher()
    publish_all(writer, range(4))
    if places.local_path(place) is None:
        places.write_text(f"{place}/pins/v3-{'0' * 16}", "7")
    else:
        with started(sys.executable, "-c", HOLDER, place) as process:
            until(lambda: any(name.startswith("v3-") for name in pins(place)))
            os.kill(process.pid, signal.SIGKILL)
    publish_all(writer, range(4, 12))
    assert _is_there(place, 3)
    monkeypatch.setattr(pin, "DEAD_SECONDS", 0.0)
    publish_all(writer, range(12, 13))
    assert pins(place) == []
    assert not _is_there(place, 3)


def _is_there(place: str, step: int) -> bool:
    return any(
        edge.makes.step == step and cheapest_chain(read_edges(f"{place}/weights"), edge.makes)
        for edge in read_edges(f"{place}/weights")
    )


def test_a_version_that_was_passed_before_its_pin_could_be_seen_is_not_taken(
    place: str, open_publisher: Callable[..., Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = open_publisher()
    publish_all(writer, range(4))
    write, steps = pin._write, iter([range(4, 9), range(9, 10)])

    def slow(uri: str, beat: int) -> None:
        publish_all(writer, next(steps))
        write(uri, beat)

    monkeypatch.setattr(pin, "_write", slow)
    with newest_pinned(place) as pinned:
        assert pinned.step == 8  # v3 is gone; v9 is newer, and v8 was there when the pin was
        publish_all(writer, range(10, 20))
        with fresh(place).at(pinned) as weights:
            assert same(weights, version(8))


def test_what_is_half_written_pins_all_the_same_and_what_is_no_pin_goes(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in {f"v7-{'0' * 16}": "", "v8": "1", ".v9-half": "x"}.items():
        places.write_text(f"{place}/pins/{name}", content)
    seen = Pins(place)
    assert seen.steps() == {7}
    assert len(pins(place)) == 3
    monkeypatch.setattr(pin, "DEAD_SECONDS", 0.0)
    assert seen.steps() == set()
    assert pins(place) == []


@pytest.mark.parametrize("place", ["file"], indirect=True)
def test_a_pin_that_was_left_goes_with_a_later_reader_where_nobody_trains(
    place: str, open_publisher: Callable[..., Publisher]
) -> None:
    publish_all(open_publisher(), range(2))
    for name, age in {"young": timedelta(hours=23), "old": timedelta(hours=25)}.items():
        places.write_text(f"{place}/pins/{name}", "1")
        when = (datetime.now(UTC) - age).timestamp()
        os.utime(f"{place}/pins/{name}", (when, when))
    with newest_pinned(place):
        assert "young" in pins(place)
        assert "old" not in pins(place)


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_a_run_that_is_removed_meanwhile_does_not_come_back(
    place: str, open_publisher: Callable[..., Publisher]
) -> None:
    publish_all(open_publisher(), range(2))
    with newest_pinned(place):
        places.remove(places.join(place, "weights"))
        time.sleep(0.5)  # a heartbeat that was under way
        places.remove(places.join(place, "pins"))
        time.sleep(0.5)  # its heart would beat
        assert pins(place) == []
    assert pins(place) == []


def test_a_run_without_weights_has_no_version_to_pin(place: str) -> None:
    with pytest.raises(NotThere, match="has published no weights yet"), newest_pinned(place):
        pass
    assert pins(place) == []


@pytest.mark.parametrize(
    ("fault", "refusal"),
    [
        (OSError(errno.EROFS, "Read-only file system", "pins"), True),
        (PermissionError("Forbidden"), True),
        (OSError(errno.EIO, "Input/output error", "pins"), False),
    ],
)
def test_of_what_may_only_be_read_the_newest_version_is_taken_without_a_pin(
    place: str,
    fault: OSError,
    refusal: bool,
    open_publisher: Callable[..., Publisher],
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish_all(open_publisher(), range(3))

    def refused(*_: object) -> None:
        raise fault

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(places, "write_text", refused)
        patch.setattr(places, "remove_file", refused)
        with nullcontext() if refusal else pytest.raises(OSError, match="Input/output"), newest_pinned(place) as taken:
            assert refusal
            assert taken == newest_version(place)
            assert pins(place) == []
    assert (
        "cannot be written: if it is trained meanwhile, what is read of it may be removed" in caplog.text
    ) == refusal
