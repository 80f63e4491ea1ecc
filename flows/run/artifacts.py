"""What a run shows on its page in Prefect: how far it is, and links to its report, to MLflow and to the cluster."""

import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
from prefect.runtime import flow_run
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from infra.background import Background
from infra.security.secrets import masked
from infra.services.prefect_client import Serves, guarded_client

TRIES = 3
PAUSE_SECONDS = 1.0  # between two updates of the progress
END_SECONDS = 4.0  # for the last updates when Prefect is away


class PrefectArtifacts:
    """A context manager. Writes in the background: no step waits for it, and a Prefect that is away costs a line."""

    def __init__(self, run: str, say: Callable[[str], None], serves: Serves) -> None:
        self._serves = serves
        self._flow_run = None if flow_run.id is None else UUID(str(flow_run.id))
        # the run's name is in the key, so that Prefect keeps no history of one run's progress under another's
        self._stem = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-") or "run"
        lacking = "Prefect's page of the run may lack links and its last progress; nothing of the run is lost"
        self._background = Background(say, lacking, END_SECONDS)
        self._clients = ExitStack()
        self._client: SyncPrefectClient | None = None
        self._progress: UUID | None = None
        self._texts: dict[str, UUID] = {}  # by name
        self._told = -float("inf")

    def __enter__(self) -> Self:
        self._background.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._submit(self._clients.close)
        self._background.__exit__(kind, error, at)

    def link(self, name: str, url: str, note: str = "") -> None:
        """Create an artifact with a link."""
        url, note = masked(url), masked(f"{name}: {note}" if note else name)
        self._submit(lambda: self._create("markdown", name, f"[{url}]({url})", note))

    def text(self, name: str, text: str) -> None:
        """Create or update an artifact with a sentence."""
        shown = masked(text)

        def tell() -> None:
            if name in self._texts:
                self._api().update_artifact(self._texts[name], ArtifactUpdate(data=shown))
            else:
                self._texts[name] = self._create("markdown", name, shown, "")

        self._submit(tell)

    def progress(self, done: int, total: int, *, last: bool) -> None:
        """Update the progress, once a second at most unless it is the ``last`` time."""
        now = time.monotonic()
        if now - self._told < PAUSE_SECONDS and not last:
            return
        self._told = now
        percent = min(100.0, 100 * done / total)

        def tell() -> None:
            note = f"step {done} of {total}"
            if self._progress is None:
                self._progress = self._create("progress", "progress", percent, note)
                return
            self._api().update_artifact(self._progress, ArtifactUpdate(data=percent, description=note))

        self._submit(tell, needed=last)

    def _submit(self, job: Callable[[], object], needed: bool = True) -> None:
        if self._flow_run is not None:
            (self._background.submit if needed else self._background.offer)("Prefect's page", lambda: _tried(job))

    def _create(self, kind: str, name: str, content: Any, note: str) -> UUID:
        made = self._api().create_artifact(
            ArtifactCreate(
                type=kind,
                key=f"{self._stem}-{re.sub(r'[^a-z0-9]+', '-', name.lower())}",
                description=note,
                data=content,
                flow_run_id=self._flow_run,
            )
        )
        return UUID(str(made.id))

    def _api(self) -> SyncPrefectClient:
        """One client for all requests, which all are of one thread: making one takes longer than a request. Prefect's
        client would do a request again, but not ask first who is there by then. Raises `OSError` without a server."""
        if not self._serves():
            raise OSError("its server is away")
        if self._client is None:
            self._client = self._clients.enter_context(guarded_client(self._serves))
            self._clients.enter_context(temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}))  # which takes 40 ms
        return self._client


def _tried(job: Callable[[], object]) -> None:
    """Do it again where the server has died under it, or was busy (status 503)."""
    for left in reversed(range(TRIES)):
        try:
            job()
            return
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            busy = (
                isinstance(error, httpx.TransportError) or error.response.status_code == HTTPStatus.SERVICE_UNAVAILABLE
            )
            if not busy or not left:
                raise
        time.sleep(PAUSE_SECONDS)
