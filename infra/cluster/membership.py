"""The membership of this machine in a cluster: one worker process per role, that joins, joins again when the scheduler
was away, and leaves in order."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask.config
from distributed import Security, Status

from infra.cluster.fork_server import START_METHOD, start_method
from infra.cluster.reach import SchedulerAddress, UnreachableError, reach
from infra.cluster.role import Role, RoleNanny, logs_to, role_options, start_resource_tracker
from infra.cluster.settings import NANNY_SETTINGS
from infra.errors import causes, one_line
from infra.security.certificates import SecurityError
from infra.security.tls import dask_security

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
LEAVE_SECONDS = 3.0  # for calls to hand in what they have, and for the scheduler to hand it on
HAND_IN_SECONDS = 2.5  # of them for the calls
SETTLED_SECONDS = 10.0  # a worker that lived longer has started well


class Membership:
    """Keeps this machine's roles in a cluster until `stop`. Everything happens in a thread of its own."""

    def __init__(
        self,
        address: SchedulerAddress,
        home: Path,
        machine: str,
        roles: Sequence[Role],
        say: Callable[[str], None],
        *,
        host: str | None = None,
        once: bool = False,
    ) -> None:
        """`host`: the address at which others reach this machine, None for that of its connection to the scheduler;
        `once`: end when the scheduler goes away."""
        self.joined = 0  # how often
        self._address, self._home, self._machine, self._roles = address, home, machine, tuple(roles)
        self._say, self._host, self._once = say, host, once
        self._nannies: dict[str, RoleNanny] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._live, name="membership", daemon=True)

    def start(self) -> None:
        """Begin to join."""
        # Started here because its first start unblocks SIGINT in the thread that caused it: RoleNanny's, otherwise.
        start_resource_tracker()
        self._start_method()
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        """Begin to leave; `wait` for the end."""
        self._ready.wait()
        assert self._loop is not None
        assert self._stopping is not None
        with suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._stopping.set)

    @property
    def ended(self) -> bool:
        """Whether this machine has left."""
        return not self._thread.is_alive()

    def wait(self) -> None:
        """Until this machine has left."""
        self._thread.join()

    def _live(self) -> None:
        logs = self._home / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        settings = {**NANNY_SETTINGS, START_METHOD: "spawn"}  # until a join says otherwise
        with logs_to(logs / f"{self._machine}.log"), dask.config.set(settings):
            asyncio.run(self._stay())

    async def _stay(self) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        pause = FIRST_PAUSE
        try:
            while not self._stopping.is_set():
                try:
                    await self._join()
                except (UnreachableError, SecurityError, JoinError) as error:
                    if self._once and self.joined:
                        self._say(f"{error}; ending because of --once")
                        break
                    self._say(f"{error}; trying again in {pause:g} s")
                    await self._wait(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
                    continue
                began = time.monotonic()
                await self._until_one_ends()
                if time.monotonic() - began > SETTLED_SECONDS:
                    pause = FIRST_PAUSE
                else:
                    await self._wait(pause)
                    pause = min(2 * pause, LONGEST_PAUSE)
        finally:
            await self._leave()

    async def _join(self) -> None:
        """Start the roles that have no nanny. Raises JoinError when one does not start."""
        missing = [role for role in self._roles if role.name not in self._nannies]
        dask.config.set({START_METHOD: self._start_method()})
        here = await asyncio.to_thread(reach, self._address, self._home)
        for role, outcome in zip(missing, await self._start(missing, self._host or here), strict=True):
            if isinstance(outcome, BaseException):
                raise JoinError(f"{role.name} did not start: {_reason(outcome, role.name)}") from outcome
        self.joined += 1
        tags = " ".join(dict.fromkeys(tag for role in missing for tag in role.tags))
        again = " again" if self.joined > 1 else ""
        self._say(f"joined {self._address}{again} as {self._machine}: {tags}")

    def _start_method(self) -> str:
        device = next((tag for role in self._roles for tag in role.tags if tag in ("CUDA", "MPS")), "CPU")
        return start_method(device, [module for role in self._roles for module in role.warm])

    async def _start(self, roles: Sequence[Role], host: str) -> list[Any]:
        security = dask_security(self._home) if self._address.scheme == "tls" else Security()  # type: ignore[no-untyped-call]

        async def start(role: Role) -> None:
            nanny = RoleNanny(str(self._address), security=security, **role_options(role, host, self._home / "logs"))
            try:
                await nanny
            except BaseException:
                await nanny.close()
                raise
            self._nannies[role.name] = nanny

        return await asyncio.gather(*map(start, roles), return_exceptions=True)

    async def _until_one_ends(self) -> None:
        """Wait for `stop`, or for the end of a nanny, whose worker has found that the scheduler is away."""
        assert self._stopping is not None
        watched = {
            asyncio.ensure_future(nanny.finished()): name  # type: ignore[no-untyped-call]
            for name, nanny in self._nannies.items()
        }
        stopping = asyncio.ensure_future(self._stopping.wait())
        ended, waiting = await asyncio.wait([*watched, stopping], return_when=asyncio.FIRST_COMPLETED)
        for each in waiting:
            each.cancel()
        for each in ended - {stopping}:
            del self._nannies[watched[each]]

    async def _leave(self) -> None:
        """Hand back what the workers hold, then end them."""
        nannies, self._nannies = list(self._nannies.values()), {}
        addresses = [
            nanny.worker_address for nanny in nannies if nanny.status == Status.running and nanny.worker_address
        ]
        if addresses:
            with suppress(OSError, TimeoutError):  # the scheduler is away: nothing to hand back to
                await asyncio.wait_for(_hand_back(nannies[0].scheduler, addresses), LEAVE_SECONDS)
        await asyncio.gather(*(nanny.close() for nanny in nannies), return_exceptions=True)
        self._say(f"{self._machine} has left {self._address}" if self.joined else "never joined")

    async def _wait(self, seconds: float) -> None:
        assert self._stopping is not None
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)


async def _hand_back(scheduler: Any, addresses: list[str]) -> None:
    """Have the workers end their calls, and their callers fetch the results; the scheduler keeps what is left of these.
    Once asked to leave they get nothing more, and a call that others can go on with ends
    (`infra.cluster.cancellation.leaving_check`)."""
    await scheduler.retire_workers(workers=addresses, close_workers=False, remove=False)
    ends = time.monotonic() + HAND_IN_SECONDS
    while time.monotonic() < ends:
        calls, results = await scheduler.processing(workers=addresses), await scheduler.has_what(workers=addresses)
        if not any(calls.values()) and not any(results.values()):
            break
        await asyncio.sleep(0.05)
    await scheduler.retire_workers(workers=addresses, close_workers=False, remove=True)


class JoinError(RuntimeError):
    """A worker process did not start."""


def _reason(error: BaseException, name: str) -> str:
    """The innermost error, in one line: the nanny raises what its worker raised, or an error around it."""
    chain = list(causes(error))
    if any(f"name taken, {name}" in str(each) for each in chain):
        return "a worker of that name is there already; wait for it to go, or give this machine another --name"
    return one_line(chain[-1])[:300]
