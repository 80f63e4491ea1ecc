"""What runs on the machines of test_links.py: each function is a program that prints JSON when it is done."""

import itertools
import json
import socket
import statistics
import sys
import time

PORT = 5001
QUIET = 1.5  # seconds without a datagram after which none is expected any more


def echo() -> None:
    """Send every datagram back, for ever."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.bind(("", PORT))
        while True:
            here.sendto(*here.recvfrom(2048))


def round_trips(address: str, count: str) -> None:
    """Milliseconds: the smallest and the median of `count` round trips on an idle link."""
    taken = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.settimeout(1)
        here.connect((address, PORT))
        while len(taken) < int(count):
            began = time.monotonic()
            here.send(b"ping")
            try:
                here.recv(2048)
                taken.append((time.monotonic() - began) * 1e3)
            except (TimeoutError, ConnectionRefusedError):
                time.sleep(0.05)  # lost, or nobody listens yet
    print(json.dumps({"least": min(taken), "median": statistics.median(taken)}))


def count_datagrams(size: str) -> None:
    """How many arrive, and Mbit/s on the wire from the first to the last: 42 bytes of headers each."""
    times = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        here.bind(("", PORT))
        print("ready", flush=True)
        here.settimeout(30)
        try:
            while True:
                here.recv(2048)
                times.append(time.monotonic())
                here.settimeout(QUIET)
        except TimeoutError:
            pass
    wire = (len(times) - 1) * (int(size) + 42) * 8 / 1e6
    print(json.dumps({"count": len(times), "mbit_s": wire / (times[-1] - times[0])}))


def send_datagrams(address: str, size: str, mbit_s: str, count: str) -> None:
    """At a steady rate on the wire."""
    payload = bytes(int(size))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.connect((address, PORT))
        began = time.monotonic()
        for number in range(int(count)):
            while time.monotonic() < began + number * (int(size) + 42) * 8 / float(mbit_s) / 1e6:
                time.sleep(0.001)
            here.send(payload)


def receive() -> None:
    """Bytes that one connection brings, Mbit/s from the first to the last of them, and the longest silence in s.

    Not from some moment in between: what came after a lost frame is read at once when that frame has been sent again,
    so from such a moment on more is read than the link carries.
    """
    marks = []
    total = 0
    with socket.create_server(("", PORT)) as server:
        print("ready", flush=True)
        peer, _ = server.accept()
        with peer:
            while received := len(peer.recv(1 << 16)):
                total += received
                marks.append((time.monotonic(), total))
            peer.sendall(b"done")
    (began, first), (ended, last) = marks[0], marks[-1]
    silence = max((late[0] - early[0] for early, late in itertools.pairwise(marks)), default=0)
    print(json.dumps({"bytes": total, "mbit_s": (last - first) * 8 / 1e6 / (ended - began), "silence": silence}))


def send(address: str, megabytes: str) -> None:
    """Ends when the other side has it all."""
    with socket.create_connection((address, PORT)) as there:
        for _ in range(int(megabytes)):
            there.sendall(bytes(1_000_000))
        there.shutdown(socket.SHUT_WR)
        assert there.recv(4) == b"done"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
