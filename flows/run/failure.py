"""Why a deployment's run has failed, where whoever started it looks: `prefect deployment run … --watch` ends with the
name of the last state, and with nothing else."""

from contextlib import suppress
from typing import Any

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import PrefectException
from prefect.settings import PREFECT_API_URL
from prefect.states import Failed

from infra.home import rlvf_home
from infra.security.printable import printable
from infra.security.secrets import masked
from infra.services.prefect_link import PrefectLink

LONGEST = 300  # characters
WITHOUT = (  # Prefect's words around it
    "Flow run encountered an exception: ",
    "Validation of flow parameters failed with error: ParameterTypeError: Flow run received invalid parameters: - ",
)


def name_the_cause(flow: Any, flow_run: FlowRun, state: State[Any]) -> None:  # noqa: ARG001 - Prefect looks at the names
    """A hook of a flow: the state that it failed in gets the cause as its name."""
    if flow_run.deployment_id is None or not state.message:
        return  # the command says it itself
    name = f"Failed: {cause(state.message)}"
    link = PrefectLink(rlvf_home(), str(PREFECT_API_URL.value() or ""))
    if link.is_ours and not link.serves(now=True):
        return  # whoever answers there now is a stranger
    with suppress(httpx.HTTPError, PrefectException, OSError), get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run.id, Failed(name=name, message=state.message), force=True)


def cause(message: str) -> str:
    """What a state's message says, in one line: a refused parameter is named on its second."""
    said = " ".join(message.split())
    for words in WITHOUT:
        said = said.removeprefix(words)
    return printable(masked(said))[:LONGEST]
