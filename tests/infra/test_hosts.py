"""Addresses and ports of this machine."""

import socket

import pytest

from infra.hosts import bracketed, free_port, is_loopback, own_addresses, without_proxy


def test_a_taken_port_is_replaced() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) != port
    assert free_port(port) == port


def test_an_address_of_another_machine_has_no_ports_here() -> None:
    with pytest.raises(OSError, match=r"no free port on 192\.0\.2\.1"):  # RFC 5737: nobody's
        free_port(0, "192.0.2.1")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("192.168.1.5", False),
        ("jetson", False),
        ("localhost.example", False),
    ],
)
def test_who_reaches_a_host(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_an_address_of_version_6_has_brackets() -> None:
    assert [bracketed(host) for host in ("::1", "127.0.0.1", "jetson")] == ["[::1]", "127.0.0.1", "jetson"]


def test_others_do_not_reach_this_machine_by_its_loopback_addresses() -> None:
    assert not any(is_loopback(address) for address in own_addresses())


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "localhost,127.0.0.1,::1,fd00::5"),
        ({"NO_PROXY": ".corp, localhost", "no_proxy": "nas"}, ".corp,localhost,nas,127.0.0.1,::1,fd00::5"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_what_needs_no_proxy_is_added_to_what_the_user_has_there(
    given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert without_proxy("[fd00::5]", "") == {"NO_PROXY": expected, "no_proxy": expected}
