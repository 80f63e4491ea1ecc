"""The addresses and ports of this machine."""

import ipaddress
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


def bracketed(host: str) -> str:
    """`host` as an address writes it."""
    return f"[{host}]" if ":" in host else host


def free_port(preferred: int, host: str = LOOPBACK) -> int:
    """`preferred` if nobody listens there, else a free port. Raises `OSError` for a host that is not this machine."""
    for port in (preferred, 0):
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a closed connection may still linger there
            with suppress(OSError):
                probe.bind((host, port))
                return int(probe.getsockname()[1])
    raise OSError(f"no free port on {host}")


def interfaces() -> list[tuple[str, str]]:
    """(address, interface) of every address of this machine that another can be given."""
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
