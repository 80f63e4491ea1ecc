"""The commands of Prefect's server and MLflow's behind the gate, and the environment of their clients."""

import os
import sys
import urllib.parse
from pathlib import Path

from infra.security.identity import authority, certificate_names, certs_folder
from infra.security.secrets import without_userinfo
from infra.services.http import answers, proves
from infra.services.passwords import USER, kept_password

AUTH = "RLVF_GATE_PASSWORD"  # user:password, in the environment: every user of the machine can read a command line


def served(
    application: str, url: str, home: Path, auth: str, listening: int | None = None
) -> tuple[list[str], dict[str, str]]:
    """The command that serves `prefect` or `mlflow` at `url`, on a socket that is handed down if there is one, and its
    environment."""
    where = urllib.parse.urlsplit(url)
    command = [sys.executable, "-P", "-m", "infra.services.serve", application]
    command += ["--host", str(where.hostname), "--port", str(where.port)]
    command += ["--listening", str(listening)] if listening is not None else []
    if where.scheme == "https":
        folder = certs_folder(home)
        command += ["--certificate", str(folder / "machine.pem"), str(folder / "machine.key")]
        command += [word for name in certificate_names(home) for word in ("--name", name)]
    return command, {AUTH: auth}


def given_mlflow() -> str | None:
    """The MLflow server of the environment, None without one. Raises `ValueError` where that is none."""
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if not given:
        return None
    if not given.startswith(("http://", "https://")):
        raise ValueError(
            f"MLFLOW_TRACKING_URI = {without_userinfo(given)}: names no server; for a database, set "
            "MLFLOW_BACKEND_STORE_URI instead and unset it"
        )
    if not answers(given):
        raise ValueError(
            f"MLFLOW_TRACKING_URI = {without_userinfo(given)}: no MLflow server answers there; start it, or "
            "unset the variable to use a local one"
        )
    return without_userinfo(given)


def mlflow_address(home: Path, url: str) -> dict[str, str]:
    """The environment that names the home's MLflow server at `url`, and its authority; no secret."""
    address = {"MLFLOW_TRACKING_URI": url}
    if url.startswith("https://"):
        address["MLFLOW_TRACKING_SERVER_CERT_PATH"] = authority(home) or ""
    return address


def mlflow_access(home: Path, url: str) -> dict[str, str]:
    """The environment of a client of the MLflow server at `url`, password included, if that has proved to be the
    home's; nothing for a stranger's."""
    kept = kept_password(home, "mlflow")
    if kept is None or not proves(url, f"{USER}:{kept}"):
        return {}
    return mlflow_address(home, url) | {"MLFLOW_TRACKING_USERNAME": USER, "MLFLOW_TRACKING_PASSWORD": kept}
