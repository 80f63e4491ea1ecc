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


def own_addresses() -> list[str]:
    """The IPv4 addresses by which other machines may reach this one."""
    found = [each.address for of in psutil.net_if_addrs().values() for each in of if each.family == socket.AF_INET]
    return [address for address in found if not is_loopback(address)]
