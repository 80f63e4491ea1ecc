"""The addresses and ports of this machine."""

import ipaddress
import os
import socket
from contextlib import suppress

import psutil

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def without_proxy(*hosts: str) -> dict[str, str]:
    """The environment of a process that reaches this machine and `hosts` without a proxy, beside those that it did
    before: a proxy would learn the password meant for an address here, and find another machine at it."""
    given = [os.environ.get(name, "") for name in ("NO_PROXY", "no_proxy")]
    names = [name.strip() for value in given for name in value.split(",")]
    near = [*names, "localhost", LOOPBACK, "::1", *(host.strip("[]") for host in hosts)]
    value = (
        "*" if "*" in names else ",".join(dict.fromkeys(filter(None, near)))
    )  # readers know a * only where it stands alone
    return {"NO_PROXY": value, "no_proxy": value}


def bracketed(host: str) -> str:
    """`host` as a URL writes it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def free_port(preferred: int, host: str = LOOPBACK) -> int:
    """`preferred` if nobody listens there, else a free port. Raises `OSError` for a host that is not this machine."""
    for port in (preferred, 0):
        with socket.socket(_family(host)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a closed connection may still linger there
            with suppress(OSError):
                probe.bind((host, port))
                return int(probe.getsockname()[1])
    raise OSError(f"no free port on {host}")


def listening_socket(host: str, port: int) -> socket.socket:
    """A server's socket at `host`, a name or address of this machine. Raises `OSError`."""
    return socket.create_server((host, port), family=_family(host))


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def interfaces() -> list[tuple[str, str]]:
    """(address, interface) of every address of this machine, but for link-local ones."""
    found = []
    states = psutil.net_if_stats()
    for interface, entries in psutil.net_if_addrs().items():
        if interface in states and not states[interface].isup:
            continue
        for entry in entries:
            if entry.family in (socket.AF_INET, socket.AF_INET6):
                address = entry.address.partition("%")[0]
                if not ipaddress.ip_address(address).is_link_local:
                    found.append((address, interface))
    return found


def own_addresses() -> list[str]:
    """The IPv4 addresses by which other machines may reach this one."""
    return [address for address, _ in interfaces() if ":" not in address and not is_loopback(address)]
