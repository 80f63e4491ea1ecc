"""One service that is kept alive."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import psutil

from infra.security.secrets import without_userinfo
from infra.services.supervisor import MARK, BackOff, Program, Service, ServiceError

DEPLOYMENTS = "rlvf/train  rlvf-sft/warm-up  rlvf-dpo/train  rlvf-reward-model/train  rlvf-eval/scheduled"
TITLES = {
    "prefect": "Prefect server",
    "mlflow": "MLflow server",
    "scheduler": "Dask scheduler",
    "worker": "Prefect worker",
    "machine": "worker here",
    "deployments": "deployments",
}
AFTER_ERRORS = ("An exception occurred.",)  # what Prefect says behind a traceback
ATTEMPTS = 3  # deaths of a service that has never worked before it is given up
ASK_SECONDS = 5.0  # between two health checks of a service that works
SILENT_SECONDS = 20.0  # without an answer before that is shown
HUNG_SECONDS = 120.0  # without an answer before the service is ended, and started again
START_SECONDS = 300.0  # that one which has worked before may take to do so again
STOPPED_SECONDS = 5.0  # between two polls: this process itself was stopped (Ctrl-Z), or very busy


@dataclass(frozen=True)
class Row:
    """A service, for a table."""

    name: str
    state: str
    address: str


class Part:
    """A service that is kept alive: started when the parts that it `needs` work, and started again, later each time,
    when it dies, or stops answering while the parts that it needs do answer."""

    def __init__(
        self,
        name: str,
        address: str,
        service: Service,
        program: Callable[[], Program],
        works: Callable[[], bool],
        *,
        needs: Sequence["Part"] = (),
        on_start: Callable[[], None] = lambda: None,
        stop: Callable[[], bool] | None = None,
        move: Callable[[], str | None] = lambda: None,
        is_needed: bool = True,
    ) -> None:
        """`works` is the health check, called in a thread. `move` is called when the service died before it ever
        worked, and returns its new address if a stranger had its port. `is_needed`: without it the others end."""
        self.name = name
        self.address = address
        self.state = "waiting"
        self._service = service
        self._program = program
        self._works = works
        self._needs = needs
        self._on_start = on_start
        self._stop = stop or service.release
        self._move = move
        self.is_needed = is_needed
        self._back_off = BackOff()
        self._question: _Question | None = None
        self._began = self._due = self._heard = self._polled = self._asked = 0.0
        self._deaths = 0
        self._ever_worked = False

    @property
    def works(self) -> bool:
        return self.state == "up"

    @property
    def lives(self) -> bool:
        """Whether the service runs, also where it does not answer, or only other processes use it."""
        return self._service.lives()

    def poll(self) -> None:
        """Check the service, and start or end it where that is due. Raises `ServiceError` after `ATTEMPTS` deaths."""
        now = time.monotonic()
        if now - self._polled > STOPPED_SECONDS or not all(part.works for part in self._needs):
            self._heard = now  # this process did not listen, or the silent part may be one that this one needs
        self._polled = now
        if self.state in ("waiting", "died"):
            if now >= self._due and all(part.works for part in self._needs):
                self._start()
        elif self._service.is_orphan():
            self._service.end()
            self._died(now)
        elif not self._service.lives():
            self._died(now)
        else:
            self._ask(now)

    def stop(self) -> bool:
        """Leave the service, which ends without another user; whether that stopped it."""
        lived = self._service.lives()
        return self._stop() and lived

    def _start(self) -> None:
        self._on_start()
        self._service.start(self._program(), self.address)
        self.state, self._began, self._question = "starting", time.monotonic(), None

    def _ask(self, now: float) -> None:
        if self._question is None and (self.state != "up" or now - self._asked >= ASK_SECONDS):
            self._asked = now
            self._question = _Question(self._works)
        if self._question is not None and self._question.answer is not None:
            if self._question.answer:
                self.state, self._ever_worked, self._heard = "up", True, now
            self._question = None
        silent, patience = now - max(self._heard, self._began), HUNG_SECONDS
        if self.state == "starting":  # the first time it may have much to do
            patience = START_SECONDS if self._ever_worked else math.inf
        if self.state == "up" and silent > SILENT_SECONDS:
            self.state = "no answer"
        elif self.state != "up" and silent > patience:
            self._service.end()
            self._died(now)

    def _died(self, now: float) -> None:
        end_stragglers(self._service)
        moved = None if self._ever_worked else self._move()
        if moved is not None:
            self.address, self.state = moved, "waiting"
            return
        self._deaths += 1
        if not self._ever_worked and self._deaths >= ATTEMPTS:
            raise ServiceError(
                f"the {TITLES[self.name]} does not start; {self._service.log} ends with: {_last(self._service.log)}"
            )
        self.state, self._due = "died", now + self._back_off.pause(now - self._began)


class _Question:
    """A health check in a thread: a service that hangs does not block the poll of the others."""

    def __init__(self, works: Callable[[], bool]) -> None:
        self.answer: bool | None = None  # None: not yet
        self._works = works
        threading.Thread(target=self._put, name="does it answer", daemon=True).start()

    def _put(self) -> None:
        try:
            self.answer = self._works()
        except (OSError, ValueError, HTTPException):
            self.answer = False  # not yet, or not any more


def end_stragglers(service: Service) -> None:
    """Kill the processes that a service has left which was killed together with its supervisor."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
            if process.environ().get(MARK) == str(service.folder):
                process.kill()


def _last(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    said = [line.strip() for line in lines if line.strip(" │╯╰─╭╮") and line.strip() not in AFTER_ERRORS]
    return without_userinfo(said[-1])[:300] if said else "nothing"
