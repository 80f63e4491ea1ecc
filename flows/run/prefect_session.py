"""What this process tells Prefect while it has a workplace: within bounds, and nothing to a stranger on its port."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas import OrchestrationResult
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.responses import SetStateStatus, StateAcceptDetails
from prefect.context import FlowRunContext
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, PREFECT_CLOUD_API_URL, temporary_settings
from prefect.states import Crashed

from infra.process_identity import ProcessIdentity
from infra.security.printable import printable
from infra.security.secrets import masked
from infra.services.prefect_api import GONE, UNFINISHED
from infra.services.prefect_client import guard, guarded_client
from infra.services.prefect_events import Outbox
from infra.services.prefect_link import PrefectLink
from infra.services.prefect_log import PrefectLog
from infra.services.prefect_server import prefect_api

STATE_SECONDS = 12.0  # what a server gets at the end to take the last state, be it to be started again before
END_SECONDS = 4.0  # and to take the events and the lines of the log that are left
POLL_SECONDS = 0.25


class PrefectSession:
    """A context manager; at its end one line says what Prefect has missed."""

    def __init__(self, home: Path, say: Callable[[str], None]) -> None:
        url = str(PREFECT_API_URL.value() or "")
        cloud = not url or url.startswith(str(PREFECT_CLOUD_API_URL.value()))
        self._link = None if cloud else PrefectLink(home, url)  # whose clients know how to wait for it
        self._outbox = None if self._link is None else Outbox(self._link)
        self.log = PrefectLog(self.serves)  # of the outermost flow that runs here
        self._outcome: str | None = None
        self._home, self._say = home, say
        self._missed: list[str] = []
        self._open = False

    def __enter__(self) -> Self:
        self._open = True
        if self._outbox is not None:
            self._outbox.open()
        self.log.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._open = False
        until = time.monotonic() + END_SECONDS
        self.log.end()
        if self._outbox is not None:
            if events := self._outbox.close(END_SECONDS):
                self._missed.insert(0, f"{events} events of its tasks")
            elif self._outbox.last is not None and not self._is_recorded(*self._outbox.last):
                self._missed.insert(0, "how its last tasks ended")
        if lines := self.log.close(max(0.0, until - time.monotonic())):
            self._missed.insert(0, f"{lines} lines of its log")
        self._say_missed()

    def _is_recorded(self, task_run: str, state: str) -> bool:
        """Wait until the server has written down that a task run is in this state, the last one that it was told: a
        busy one has events in memory, and ends with this process."""
        assert self._link is not None
        api, until = prefect_api(self._home, self._link.url), time.monotonic() + STATE_SECONDS
        while self._link.is_ours:
            with suppress(OSError, ValueError, HTTPException):
                if api.ask(f"task_runs/{task_run}")["state_name"] == state:
                    break
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def serves(self, *, now: bool = False) -> bool:
        """Whether Prefect's server is there, and the one meant; with ``now`` it has to prove that anew."""
        return self._link is None or self._link.serves(now=now)

    def conclude(self, lines: Sequence[str]) -> None:
        """How the flow ended, for its log and as the message of its last state."""
        for line in lines:
            self.log.say(line)
        self._outcome = printable(masked("; ".join(lines)))

    def crashed(self, flow_run: str) -> None:
        """Mark a flow run as crashed whose process is gone, if this server knows it and it has not ended."""
        if self._link is None or not self._link.serves():
            return
        with (
            suppress(httpx.HTTPError, PrefectException, OSError, ValueError),  # of another server, or just away
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            guarded_client(self._link.serves, timeout=END_SECONDS) as client,
        ):
            run = client.read_flow_run(UUID(flow_run))
            if run.state is not None and run.state.type.value in UNFINISHED:
                client.set_flow_run_state(run.id, Crashed(message=GONE), force=True)

    def bind(self) -> None:
        """Bound the time that the flow of this process takes to set its states, the last one above all: Prefect's own
        client retries a dead server for minutes, or whoever took its port, and the flow ends with an error then."""
        context = FlowRunContext.get()
        if context is not None and context.flow_run is not None and context.flow_run.parent_task_run_id is None:
            self.log.begin(context.flow_run.id)
            self._outcome = None
        if self._link is None or context is None:
            return
        client = context.client
        if not isinstance(client, SyncPrefectClient) or "set_flow_run_state" in vars(client):
            return
        guard(client, self._link.serves)
        told = client.set_flow_run_state

        def tell(flow_run_id: UUID | str, state: State[Any], force: bool = False) -> OrchestrationResult[Any]:
            if state.is_completed() and state.message is None:
                state = state.model_copy(update={"message": self._outcome})
            until = time.monotonic() + STATE_SECONDS
            while self._is_back(until):
                try:
                    # a fault is met by the next round here, which first checks who is there
                    with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), _answered_by(client, until):
                        return told(flow_run_id, state, force)
                except httpx.TransportError:  # it has died just now, or hangs
                    time.sleep(POLL_SECONDS)
            self._missed.append(f"that the run is {state.name}")
            if not self._open:
                self._say_missed()
            return OrchestrationResult(state=state, status=SetStateStatus.ACCEPT, details=StateAcceptDetails())

        vars(client)["set_flow_run_state"] = tell  # of this one client, which the flow's engine uses
        self._name_the_process(client, context.flow_run)

    def _name_the_process(self, client: SyncPrefectClient, run: FlowRun | None) -> None:
        """Say which process runs the flow: `PrefectApi` sees by it that the process is gone. That of a deployment is
        known to its worker."""
        assert self._link is not None
        if run is None or run.deployment_id is not None or not self._link.serves():
            return
        with (
            suppress(httpx.HTTPError, PrefectException),
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            _answered_by(client, time.monotonic() + END_SECONDS),
        ):
            client.update_flow_run(run.id, infrastructure_pid=ProcessIdentity.of_this().to_json())

    def _is_back(self, until: float) -> bool:
        """Wait for the server until then; whether it is there."""
        assert self._link is not None
        said = False
        while (left := until - time.monotonic()) > 0:
            if self._link.serves(now=True):
                return True
            if not said:
                said = True
                self._say(f"the Prefect server is away; waiting {left:.0f} s for it at most")
            time.sleep(POLL_SECONDS)
        return False

    def _say_missed(self) -> None:
        if self._missed and self._link is not None:
            what, self._missed = " and ".join(self._missed), []
            self._say(
                f"Prefect missed {what}: its server did not answer at {self._link.url}; nothing of the run is lost"
            )


@contextmanager
def _answered_by(client: SyncPrefectClient, until: float) -> Iterator[None]:
    """Requests of this client time out at ``until``, not after a minute."""
    http = client._client  # whose limits Prefect sets once, when it is made
    usual, http.timeout = http.timeout, httpx.Timeout(max(POLL_SECONDS, until - time.monotonic()))
    try:
        yield
    finally:
        http.timeout = usual
