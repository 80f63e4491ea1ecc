"""What a person asks of a run on Prefect's page while it goes on: pause, resume, cancel."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from uuid import UUID

import httpx
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext
from prefect.exceptions import Abort, PrefectException
from prefect.runtime import flow_run
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled

from flows.run.display import Display
from infra.dispatch.calls import DispatchStoppedError
from infra.dispatch.dispatch import Dispatch
from infra.services.prefect_client import Serves, guarded_client

POLL_SECONDS = 1.0
ANSWER_SECONDS = 10.0  # that the server gets
END_SECONDS = 2.0  # that an answer under way gets at the end
ENDED = {StateType.CANCELLING, StateType.CANCELLED, StateType.CRASHED, StateType.FAILED, StateType.COMPLETED}


class CancelledOnPage(Abort):
    """The run was cancelled on Prefect's page; its checkpoints are there. Prefect takes an `Abort` as the end of a flow
    whose state is settled: an ordinary exception would make the run a failed one."""


def from_prefect() -> bool:
    """Whether the run was asked for at Prefect, by its form, its API or its command."""
    context = FlowRunContext.get()
    return context is not None and context.flow_run is not None and context.flow_run.deployment_id is not None


@contextmanager
def watch_run_state(dispatch: Dispatch, display: Display, serves: Serves) -> Iterator[threading.Event]:
    """Follow the state that a person sets on Prefect's page: it changes nothing by itself, and is polled once a second.

    While the run is paused no lease is handed out, those under way are taken back, and an update under way comes to its
    end. When the run is cancelled the work stops; yields the event that says so. What is stopped by that ends with
    `CancelledOnPage`.
    """
    cancelled = threading.Event()
    cancelling: list[bool] = []  # whether the state found was not a last one
    identity = flow_run.id
    if identity is None:
        yield cancelled
        return
    over = threading.Event()

    def watch() -> None:
        paused = False
        # asked again in a second anyway: Prefect's own retries would keep the end of the run waiting for a minute
        limits = {"timeout": ANSWER_SECONDS}
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            guarded_client(serves, **limits) as client,
        ):
            while not over.wait(POLL_SECONDS):
                if not serves():
                    continue  # whoever answers there now is a stranger
                try:
                    state = client.read_flow_run(UUID(identity)).state
                except (httpx.HTTPError, PrefectException, OSError):
                    continue  # the server is away: the run goes on as it was
                if state is None or over.is_set():
                    continue
                if state.type in ENDED:
                    cancelling.append(state.type == StateType.CANCELLING)
                    cancelled.set()
                    crashed = state.type == StateType.CRASHED  # by Prefect, or by who took the run over
                    display.say("marked as crashed" if crashed else f"{state.type.value.lower()} on Prefect's page")
                    dispatch.stop()
                    return
                if (state.type == StateType.PAUSED) != paused:
                    paused = not paused
                    if paused:
                        dispatch.hold()
                        display.say(
                            "paused on Prefect's page; every step so far is saved; it goes on when resumed there"
                        )
                    else:
                        dispatch.release()
                        display.say("resumed")

    # Prefect's settings are in the context of the flow's thread
    watching = threading.Thread(target=copy_context().run, args=(watch,), name="page", daemon=True)
    watching.start()
    try:
        yield cancelled
    except DispatchStoppedError as stopped:
        if not cancelled.is_set():
            raise
        raise CancelledOnPage("cancelled on Prefect's page") from stopped
    finally:
        over.set()
        watching.join(END_SECONDS)
        if any(cancelling) and serves():  # a run that no Prefect worker supervises would be cancelling for ever
            with guarded_client(serves) as client, suppress(httpx.HTTPError, PrefectException, OSError):
                client.set_flow_run_state(UUID(identity), Cancelled(message="stopped; its steps are saved"), force=True)
