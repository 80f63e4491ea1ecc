"""Links are as fast, long and lossy as asked, and can be cut."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.links import network as networks
from tests.links.link import VPN, WIFI, Link, LinkError
from tests.links.network import Machine, Network

pytestmark = pytest.mark.slow
TRAFFIC = str(Path(__file__).with_name("traffic.py"))
LINKS = {
    "store": Link(),
    "wifi": WIFI,
    "vpn": VPN,
    "rate": Link(mbit_s=30, up_mbit_s=10),
    "lossy": Link(loss=0.05),
}


@pytest.fixture(scope="module")
def machines(network: Network) -> dict[str, Machine]:
    return {name: network.add(name, number, link) for number, (name, link) in enumerate(LINKS.items(), start=9)}


@contextmanager
def running(machine: Machine, *words: str) -> Iterator[Any]:
    """A program of traffic.py that is ready; calling what it gives waits for what it has measured."""
    process = machine.start("python", TRAFFIC, *words, stdout=subprocess.PIPE)
    assert process.stdout is not None

    def measured() -> Any:
        out, _ = process.communicate(timeout=60)
        return json.loads(out)

    try:
        assert process.stdout.readline() == "ready\n"
        yield measured
    finally:
        process.kill()
        process.communicate()


def flood(sender: Machine, receiver: Machine, mbit_s: float, seconds: float = 3.0, size: int = 1400) -> Any:
    """What arrives of a steady stream of datagrams of this rate."""
    count = int(mbit_s * 1e6 * seconds / 8 / (size + 42))
    with running(receiver, "count_datagrams", str(size)) as measured:
        sender.run("python", TRAFFIC, "send_datagrams", receiver.address, str(size), str(mbit_s), str(count))
        return {**measured(), "sent": count}


def transfer(sender: Machine, receiver: Machine, megabytes: int) -> Any:
    with running(receiver, "receive") as measured:
        sender.run("python", TRAFFIC, "send", receiver.address, str(megabytes))
        return measured()


@pytest.mark.parametrize(("name", "up", "down"), [("wifi", 50, 50), ("vpn", 20, 50), ("rate", 10, 30)])
def test_a_link_has_its_rate_in_each_direction(machines: dict[str, Machine], name: str, up: float, down: float) -> None:
    here, store = machines[name], machines["store"]
    sent, received = flood(here, store, up * 1.5), flood(store, here, down * 1.5)
    print(f"{name}: up {sent}, down {received}")
    assert 0.8 * up < sent["mbit_s"] < 1.05 * up
    assert 0.8 * down < received["mbit_s"] < 1.05 * down


@pytest.mark.parametrize(("name", "up", "down"), [("wifi", 50, 50), ("rate", 10, 30)])
def test_tcp_fills_a_link(machines: dict[str, Machine], name: str, up: float, down: float) -> None:
    here, store = machines[name], machines["store"]
    sent, received = transfer(here, store, round(up * 0.4)), transfer(store, here, round(down * 0.4))
    print(f"{name}: up {sent}, down {received}")
    assert 0.8 * up < sent["mbit_s"] < 1.05 * up
    assert 0.8 * down < received["mbit_s"] < 1.05 * down


@pytest.mark.parametrize(("name", "least"), [("store", 0), ("rate", 0), ("wifi", 10), ("vpn", 80)])
def test_a_round_trip_takes_the_delay_twice(machines: dict[str, Machine], name: str, least: float) -> None:
    other = machines["lossy"] if name == "store" else machines["store"]
    process = other.start("python", TRAFFIC, "echo")
    try:
        taken = json.loads(machines[name].run("python", TRAFFIC, "round_trips", other.address, "20"))
    finally:
        process.kill()
        process.wait()
    print(f"{name}: {taken} ms")
    assert least <= taken["least"] < least + 3
    assert taken["median"] < least + 10


@pytest.mark.parametrize("upwards", [True, False])
def test_a_lossy_link_loses_its_share(machines: dict[str, Machine], upwards: bool) -> None:
    ends = (machines["lossy"], machines["store"])
    measured = flood(*(ends if upwards else ends[::-1]), mbit_s=16, size=200)
    lost = 1 - measured["count"] / measured["sent"]
    print(f"lost {lost:.4f} of {measured['sent']}")
    assert measured["sent"] > 20_000
    assert 0.043 < lost < 0.06


def test_a_transfer_survives_a_cut(network: Network, machines: dict[str, Machine]) -> None:
    with running(machines["store"], "receive") as measured:
        sender = machines["wifi"].start("python", TRAFFIC, "send", machines["store"].address, "15")
        time.sleep(1)
        network.cut("wifi")
        time.sleep(2)
        assert sender.poll() is None
        network.mend("wifi")
        assert sender.wait(30) == 0
        received = measured()
    print(received)
    assert received["bytes"] == 15_000_000
    assert received["silence"] > 1.9


def test_a_cut_takes_nothing_from_the_others(network: Network, machines: dict[str, Machine]) -> None:
    network.cut("wifi")
    try:
        assert transfer(machines["rate"], machines["store"], 1)["bytes"] == 1_000_000
        connect = f"import socket; socket.create_connection(({machines['store'].address!r}, 5001), timeout=4)"
        with pytest.raises(LinkError, match="TimeoutError"):  # silence, no refusal
            machines["wifi"].run("python", "-c", connect)
    finally:
        network.mend("wifi")


def test_a_command_that_fails_or_takes_too_long_says_so(machines: dict[str, Machine]) -> None:
    with pytest.raises(LinkError, match=r"store: python -c .* ended with 3:\nwhat it said"):
        machines["store"].run("python", "-c", "print('what it said'); raise SystemExit(3)")
    with pytest.raises(LinkError, match=r"took longer than 1 s"):
        machines["store"].run("sleep", "60", seconds=1)


@pytest.mark.usefixtures("machines")
def test_names_and_numbers_are_taken_once(network: Network) -> None:
    for name, number in (("store", 100), ("new", 9), ("new", 255)):
        with pytest.raises(ValueError, match="that are free"):
            network.add(name, number)


@pytest.mark.parametrize("link", [{"mbit_s": 0}, {"up_mbit_s": -1}, {"delay_ms": -1}, {"loss": 1}])
def test_a_link_that_cannot_be_is_refused(link: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a rate is above 0"):
        Link(**link)


def namespaces(pid: int) -> str:
    listed = subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout.split()
    return " ".join(name for name in listed if name.startswith(f"rlvf-{pid}-"))


def test_nothing_is_left_after_an_exception(tmp_path: Path) -> None:
    if reason := networks.available():
        pytest.skip(reason)
    before = namespaces(os.getpid())
    started = []

    def fail() -> None:
        with networks.network(tmp_path) as net:
            started.append(net.add("one", 1, WIFI).start("sleep", "600"))
            assert len(namespaces(os.getpid())) > len(before)
            raise RuntimeError("of ours")

    with pytest.raises(RuntimeError, match="of ours"):
        fail()
    assert started[0].wait(5) == -signal.SIGKILL
    assert namespaces(os.getpid()) == before


def test_what_a_killed_process_left_is_swept(tmp_path: Path) -> None:
    if reason := networks.available():
        pytest.skip(reason)
    script = (
        "import pathlib, subprocess, sys; from tests.links.link import WIFI; from tests.links.network import network\n"
        "with network(pathlib.Path(sys.argv[1])) as net:\n"
        "    net.add('one', 1, WIFI).start('sleep', '600', stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        "    print('ready', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "killed")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
        finally:
            process.kill()
    assert namespaces(process.pid)
    with networks.network(tmp_path / "next"):
        assert not namespaces(process.pid)
