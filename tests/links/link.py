"""Links between network namespaces: as slow, long and lossy as asked. Linux, root.

The kernel needs no netem: where delay or loss is asked, a process (`tests.links.forwarder`) carries the frames between
two TAP devices; otherwise it is a veth, with a token bucket at each end where a rate is asked. How fast TCP is on a
lossy link is up to the congestion control of this computer (`net.ipv4.tcp_congestion_control`).
"""

import fcntl
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.links import forwarder

TUN = Path("/dev/net/tun")
TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000  # linux/if_tun.h
IFREQ = struct.Struct("16sH22x")


class LinkError(RuntimeError):
    """A network that cannot be made, or a command on one of its machines that failed."""


@dataclass(frozen=True)
class Link:
    """What lies between a machine and the bridge that joins all machines. Rates count whole frames."""

    mbit_s: float | None = None  # towards the machine; None: as fast as this computer can
    delay_ms: float = 0.0  # one way
    loss: float = 0.0  # the share of the frames, each way, that never arrive
    up_mbit_s: float | None = None  # from the machine; None: as towards it

    def __post_init__(self) -> None:
        rates = [rate for rate in (self.mbit_s, self.up_mbit_s) if rate is not None]
        if min(rates, default=1.0) <= 0 or self.delay_ms < 0 or not 0 <= self.loss < 1:
            raise ValueError(f"{self}: a rate is above 0, a delay at least 0, a loss from 0 to below 1")

    @property
    def rates(self) -> tuple[float | None, float | None]:
        """Mbit/s (from, towards) the machine."""
        return self.mbit_s if self.up_mbit_s is None else self.up_mbit_s, self.mbit_s


CABLE = Link()
WIFI = Link(mbit_s=50, delay_ms=5)
VPN = Link(mbit_s=50, up_mbit_s=20, delay_ms=40, loss=0.005)  # through the uplink of a home


@contextmanager
def joined(link: Link, namespace: str, hub: str, port: str, seed: str = "") -> Iterator[None]:
    """The device `eth0` in one namespace and `port` in the other, both down, with the link between them. Which frames a
    lossy link loses follows from `seed`. Raises LinkError."""
    if link.delay_ms or link.loss:
        with _forwarded(link, namespace, hub, port, seed):
            yield
        return
    run("ip", "-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
    for where, device, rate in zip((namespace, hub), ("eth0", port), link.rates, strict=True):
        if rate is not None:
            limit(where, device, rate)
    yield  # the devices go with the namespaces


@contextmanager
def _forwarded(link: Link, namespace: str, hub: str, port: str, seed: str) -> Iterator[None]:
    with ExitStack() as ours:
        near, near_name = ours.enter_context(tap())
        far, far_name = ours.enter_context(tap())
        for name, where, wanted in ((near_name, namespace, "eth0"), (far_name, hub, port)):
            run("ip", "link", "set", name, "netns", where)
            run("ip", "-n", where, "link", "set", name, "name", wanted)
        up, down = (None if rate is None else rate * 1e6 / 8 for rate in link.rates)  # bytes/s
        delay = link.delay_ms / 1e3
        directions = [
            (near, far, up, delay, link.loss, f"{seed} up"),
            (far, near, down, delay, link.loss, f"{seed} down"),
        ]
        # -I: modules that lie beside it have names of the standard library's
        process = subprocess.Popen(
            [sys.executable, "-I", forwarder.__file__, json.dumps(directions)],
            stdin=subprocess.PIPE,  # it ends with its input, so also if this process is killed
            pass_fds=(near, far),
            start_new_session=True,
        )
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def limit(namespace: str, device: str, mbit_s: float) -> None:
    """What leaves a device waits in a token bucket, and is dropped where too much waits."""
    burst = max(4096, int(mbit_s * 125))  # bytes: 1 ms, which is what the kernel's timers keep up with
    rate = ("rate", f"{round(mbit_s * 1e6)}bit", "burst", str(burst))
    latency = f"{forwarder.QUEUE * 1e3:.0f}ms"
    run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *rate, "latency", latency)


@contextmanager
def tap() -> Iterator[tuple[int, str]]:
    """A TAP device, as (file descriptor, name); it is gone when the last process that has it open closes it."""
    device = os.open(TUN, os.O_RDWR | os.O_NONBLOCK)
    try:
        made = fcntl.ioctl(device, TUNSETIFF, IFREQ.pack(b"rlvf%d", IFF_TAP | IFF_NO_PI))
        yield device, IFREQ.unpack(made)[0].rstrip(b"\0").decode()
    finally:
        os.close(device)


def run(*words: str) -> str:
    """What a command prints. Raises LinkError with its complaint."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise LinkError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout
