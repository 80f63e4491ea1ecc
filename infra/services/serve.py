"""Prefect's server or MLflow's, served by this process behind the gate: `python -m infra.services.serve prefect …`.

Their own commands start the same applications with the same settings, without a gate.
"""

import argparse
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from infra.hosts import listening_socket
from infra.services.asgi import Application, GatedApplication
from infra.services.garbage import collect_apart
from infra.services.gate import Gate
from infra.services.own_artifacts import OWN, is_within
from infra.services.served import AUTH

# The sources of a model's version (MLflow keeps a file: within its run's folder), and two words for a prompt's.
SOURCES = "^(mlflow-artifacts|runs|models|file):/|^(dummy-source|prompt-template)$"


def prefect_application() -> tuple[Application, dict[str, Any]]:
    """Prefect's API and pages, as `prefect server start` serves them, with its settings of uvicorn."""
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    begin_immediately()
    settings = get_current_settings().server.api
    return create_app(final=True), {
        "timeout_keep_alive": settings.keepalive_timeout,
        "ws_ping_interval": settings.websocket_ping_interval,
        "ws_ping_timeout": settings.websocket_ping_timeout,
    }


def begin_immediately() -> None:
    """Have each of Prefect's transactions on SQLite take the write lock as it begins (BEGIN IMMEDIATE). By itself it
    reads first, and one that has read cannot wait for the lock any more: SQLite refuses it where another has written
    meanwhile (SQLITE_BUSY_SNAPSHOT), and the API answers 503, to four clients nearly always."""
    from prefect.server.database.configurations import SQLITE_BEGIN_MODE, AioSqliteConfiguration
    from prefect.server.database.dependencies import set_database_config
    from prefect.server.utilities.database import get_dialect
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL

    class Immediate(AioSqliteConfiguration):
        @asynccontextmanager
        async def begin_transaction(self, session: Any, with_for_update: bool = False) -> AsyncIterator[Any]:
            async with super().begin_transaction(session, with_for_update) as transaction:
                mode = SQLITE_BEGIN_MODE.set("IMMEDIATE")
                try:
                    await session.connection()  # which begins
                finally:
                    SQLITE_BEGIN_MODE.reset(mode)  # a session inside this one may only read
                yield transaction

    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    if get_dialect(url).name == "sqlite":
        set_database_config(Immediate(connection_url=url))


def mlflow_application() -> tuple[Application, dict[str, Any]]:
    """MLflow's tracking server, as `mlflow server` serves it: it stores artifacts itself."""
    from mlflow.server import constants, handlers

    backend = os.environ["MLFLOW_BACKEND_STORE_URI"]
    os.environ |= {
        constants.BACKEND_STORE_URI_ENV_VAR: backend,
        constants.REGISTRY_STORE_URI_ENV_VAR: backend,
        constants.ARTIFACT_ROOT_ENV_VAR: OWN,
        constants.ARTIFACTS_DESTINATION_ENV_VAR: os.environ["MLFLOW_ARTIFACTS_DESTINATION"],
        constants.SERVE_ARTIFACTS_ENV_VAR: "true",
        "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "true",  # the gate asks for all that it asks for, and more
    }
    os.environ.setdefault("MLFLOW_CREATE_MODEL_VERSION_SOURCE_VALIDATION_REGEX", SOURCES)
    handlers.initialize_backend_stores(backend, backend, OWN)
    keep_to_artifact_store(handlers._get_tracking_store())
    read_traces_where_they_belong(handlers._get_tracking_store())
    from mlflow.server.fastapi_app import app

    return app, {}


def keep_to_artifact_store(tracking: Any) -> None:
    """Have MLflow's tracking store refuse an experiment whose artifacts would lie elsewhere: this server writes them
    itself, wherever their experiment says. Each of MLflow's APIs makes an experiment here."""
    from mlflow.exceptions import MlflowException

    create = tracking.create_experiment

    def create_experiment(name: str, artifact_location: str | None = None, tags: Any = None) -> str:
        if artifact_location and not is_within(artifact_location):
            raise MlflowException.invalid_parameter_value(
                f"artifact_location {artifact_location[:200]!r}: leave it out, or give mlflow-artifacts:/FOLDER; this "
                "server keeps artifacts in its own store only"
            )
        return str(create(name, artifact_location, tags))

    vars(tracking)["create_experiment"] = create_experiment


def read_traces_where_they_belong(tracking: Any) -> None:
    """Have MLflow's server refuse a trace that says by its tags that its content lies elsewhere than beside the
    artifacts of its experiment: each of the server's APIs takes such tags, and the server reads what they name."""
    from mlflow.exceptions import MlflowException
    from mlflow.server import handlers
    from mlflow.store.tracking import sqlalchemy_store

    def kept(location: Callable[[Any], str]) -> Callable[[Any], str]:
        def own(trace: Any) -> str:
            uri = location(trace)
            root = str(tracking.get_experiment(trace.experiment_id).artifact_location).rstrip("/")
            if ".." in uri.split("/") or not (is_within(uri) or uri.startswith(f"{root}/traces/")):
                raise MlflowException.invalid_parameter_value(
                    f"trace {trace.trace_id}: its tags name {uri[:200]!r}; this server reads from its own store only"
                )
            return uri

        return own

    names = ["get_artifact_uri_for_trace"]
    if not os.environ.get("MLFLOW_TRACE_ARCHIVAL_CONFIG"):  # else that names their place
        names.append("get_archive_uri_for_trace")
    for reader in (vars(handlers), vars(sqlalchemy_store)):  # each knows them under these names
        reader.update({name: kept(reader[name]) for name in names if name in reader})


APPLICATIONS: dict[str, Callable[[], tuple[Application, dict[str, Any]]]] = {
    "prefect": prefect_application,
    "mlflow": mlflow_application,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("application", choices=APPLICATIONS)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--listening", type=int, help="descriptor of the socket that listens there, if it was made")
    parser.add_argument("--name", action="append", default=[], help="what this machine is called beside its host")
    parser.add_argument("--certificate", nargs=2, metavar=("PEM", "KEY"), help="serve https")
    given = parser.parse_args()
    auth = os.environ.pop(AUTH)
    try:
        listening = (
            socket.socket(fileno=given.listening)
            if given.listening is not None
            else listening_socket(given.host, given.port)
        )
    except OSError as error:
        sys.exit(f"cannot listen at {given.host}, port {given.port}: {error.strerror or error}")
    listening.set_inheritable(False)  # what it starts is not to keep the port
    application, settings = APPLICATIONS[given.application]()
    tls = {}
    if given.certificate:
        tls = dict(zip(("ssl_certfile", "ssl_keyfile"), given.certificate, strict=True))
    gate = Gate(auth, given.port, [given.host, *given.name], tls=bool(tls))
    import uvicorn

    config = uvicorn.Config(GatedApplication(application, gate), log_level="warning", **settings, **tls)
    collect_apart()
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
