"""A link in user space: frames go from one TAP device to another no faster than asked, later, and not all of them.

A program of its own that needs only the standard library: `python -I forwarder.py '<JSON>'`, see `main`. It ends with
its standard input.
"""

import json
import os
import random
import select
import sys
import time
from collections import deque
from contextlib import suppress

QUEUE = 0.1  # seconds of traffic that wait before a bottleneck at most, then what comes is dropped: a router's buffer
CREDIT = 0.01  # seconds of unused rate that may be made up for: this process is not woken at every frame's time
MOST_FRAME = 2048  # bytes; frames of an MTU of 1500 have 1514
PACE = 0.0005  # seconds from one look at the devices to the next at least: waking up costs more than a frame
BATCH = 64  # frames read before what is due is written


class Direction:
    """Frames from `source` to `sink`, both non-blocking file descriptors of TAP devices."""

    def __init__(
        self, source: int, sink: int, byte_s: float | None, delay: float, loss: float, draws: random.Random
    ) -> None:
        self.source = source
        self._sink = sink
        self._byte_s = byte_s
        self._delay = delay  # seconds
        self._loss = loss
        self._draws = draws
        self._free_at = 0.0  # when the bottleneck has sent all that it took
        self._flying: deque[tuple[float, bytes]] = deque()  # (due at, frame), by rising time

    @property
    def due(self) -> float:
        """When the next frame arrives."""
        return self._flying[0][0] if self._flying else float("inf")

    def take(self, now: float) -> None:
        """Read what waits: it is queued for the bottleneck, dropped because the queue is full, or lost on its way."""
        for _ in range(BATCH):
            try:
                frame = os.read(self.source, MOST_FRAME)
            except BlockingIOError:
                return
            sent = now
            if self._byte_s is not None:
                if self._free_at - now > QUEUE:
                    continue
                self._free_at = max(self._free_at, now - CREDIT) + len(frame) / self._byte_s
                sent = max(self._free_at, now)
            if self._loss and self._draws.random() < self._loss:
                continue
            self._flying.append((sent + self._delay, frame))

    def give(self, now: float) -> None:
        """Write what is due."""
        while self._flying and self._flying[0][0] <= now:
            with suppress(OSError):  # the device at the other end is down: the frame is lost, as on a cable
                os.write(self._sink, self._flying.popleft()[1])


def forward(directions: list[Direction], until: int) -> None:
    """Forward until the file descriptor `until` has come to its end."""
    watched = [until, *(direction.source for direction in directions)]
    looked = 0.0
    while True:
        due = min(direction.due for direction in directions)
        wait = None if due == float("inf") else max(0.0, due - time.monotonic())
        ready, _, _ = select.select(watched, (), (), wait)
        if until in ready and not os.read(until, 1):
            return
        if (early := looked + PACE - time.monotonic()) > 0:
            time.sleep(early)
        looked = time.monotonic()
        for direction in directions:
            if direction.source in ready:
                direction.take(time.monotonic())
            direction.give(time.monotonic())


def main() -> None:
    """The argument is a list of directions: `[source, sink, bytes/s or null, delay in s, loss, seed]`."""
    directions = [
        Direction(source, sink, byte_s, delay, loss, random.Random(seed))
        for source, sink, byte_s, delay, loss, seed in json.loads(sys.argv[1])
    ]
    with suppress(PermissionError):  # else a link slows down when the machines that it joins compute
        os.setpriority(os.PRIO_PROCESS, 0, -10)
    forward(directions, sys.stdin.fileno())


if __name__ == "__main__":
    main()
