"""The password of the home's MLflow server for MLflow's own clients: told, request by request, to who has shown to be
that server. A server that has died leaves its port to whoever takes it."""

import os
import urllib.parse
from pathlib import Path

import requests
from mlflow.tracking.request_auth import registry
from mlflow.tracking.request_auth.abstract_request_auth_provider import RequestAuthProvider
from requests.auth import AuthBase

from infra.services.addresses import running
from infra.services.gate import basic
from infra.services.http import proves
from infra.services.passwords import auth_of, kept_password
from infra.services.served import mlflow_address

GIVEN = ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD")  # MLflow sends these to whoever answers


class OwnServer(RequestAuthProvider, AuthBase):
    """What MLflow asks for the password of the server of `home` at `where` (a host and port), request by request."""

    def __init__(self, home: Path, where: str) -> None:
        self._home = home
        self._where = where

    def get_name(self) -> str:
        return f"rlvf {self._where} of {self._home}"

    def get_auth(self) -> "OwnServer":
        return self

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Add the password, but not for another server. Raises `requests.ConnectionError`."""
        if urllib.parse.urlsplit(str(request.url)).netloc != self._where:
            return request
        auth = auth_of(self._home, "mlflow")
        if not proves(str(request.url), auth):
            raise requests.ConnectionError(f"no MLflow server of this home answers at {self._where}")
        request.headers["Authorization"] = f"Basic {basic(auth)}"
        return request


def adopt_mlflow(home: Path, uri: str) -> None:
    """Let MLflow's clients of this process use the server at `uri` with the home's password, if that is the home's own.

    A home's password that stands in the environment (`rlvf status --shell`) is taken out of it.
    """
    kept = kept_password(home, "mlflow")
    given = os.environ.get(GIVEN[1])
    if kept is None:
        return
    if given is None:
        if uri.rstrip("/") != running(home).mlflow or not proves(uri, auth_of(home, "mlflow")):
            return
    elif given != kept:
        return
    for name in GIVEN:
        os.environ.pop(name, None)
    provider = OwnServer(home, urllib.parse.urlsplit(uri).netloc)
    providers = registry._request_auth_provider_registry
    if provider.get_name() not in [known.get_name() for known in providers]:
        providers.register(lambda: provider)  # type: ignore[no-untyped-call]
    os.environ["MLFLOW_TRACKING_AUTH"] = provider.get_name()
    for name, value in mlflow_address(home, uri.rstrip("/")).items():
        os.environ.setdefault(name, value)
