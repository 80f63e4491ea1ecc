"""`rlvf verifier serve`."""

import argparse
import errno
import json
import socket
import ssl
import sys
from pathlib import Path
from typing import Any

from flows.commands.command import Command, say
from flows.config import ServeConfig
from flows.options.reading import add_options, read_config
from infra.home import home_line, rlvf_home
from infra.hosts import bracketed, is_loopback, listening_socket
from infra.interrupts import put_off
from infra.security.identity import certificate_names, certs_folder, own_certificates
from infra.security.tls import refuse_open_address
from infra.services.asgi import GatedApplication
from infra.services.gate import Gate
from rl.verifiers.opened import opened
from rl.verifiers.spec import named, refuse_reward_model
from tasks.sets.named_set import open_verifier

PORT = 8900  # where it is free

EXAMPLES = """
rlvf verifier serve --verifier gsm8k                           at https://127.0.0.1:8900
rlvf verifier serve --verifier my_reward.py:reward --port 9000
rlvf train --problems q.jsonl --verifier https://127.0.0.1:8900   uses it
"""


def _options(command: argparse.ArgumentParser) -> None:
    command.add_argument("action", choices=["serve"], help="answer POST /verify and GET /health until Ctrl-C")
    command.add_argument("--insecure", action="store_true", help="no TLS and no certificates")
    command.add_argument("--json", action="store_true", help="print one JSON object with the address, once it answers")
    command.usage = "%(prog)s serve [options]"
    add_options(command, ServeConfig)


def _run(given: argparse.Namespace) -> None:
    config = read_config(ServeConfig, file=given.config, overrides=given.overrides)
    refuse_reward_model(config.verifier)
    home = rlvf_home()
    refuse_open_address(config.host, home, given.insecure)
    spec = open_verifier(named(config.verifier.name, ""), config.verifier)
    if spec.is_service:
        raise ValueError(f"verifier {spec.name!r} is a service already; serve one that runs here")
    if not given.insecure and is_loopback(config.host):
        # other users of this machine reach it too
        own_certificates(home, say=say)
    tls = {} if given.insecure else _certificates(home)
    listening = _listen(config.host, config.port)
    with listening:
        verifier = opened(spec, home)
        verifier.warm()
        port = listening.getsockname()[1]
        print(home_line(), file=sys.stderr)
        if config.port is None and port != PORT:
            print(f"port {PORT} is in use: the verifier listens on {port}", file=sys.stderr)
        address = f"{'https' if tls else 'http'}://{bracketed(config.host)}:{port}"
        with put_off():
            import uvicorn

            from flows.commands.verifier_service import verifier_app

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                print(f"{spec.name} judges at {address}; Ctrl-C ends it", file=sys.stderr, flush=True)
                if given.json:
                    print(json.dumps({"url": address, "verifier": spec.name}), flush=True)

        names = [config.host, *certificate_names(home)]
        app = GatedApplication(verifier_app(spec, verifier), Gate(None, port, names, tls=bool(tls)))
        settings: dict[str, Any] = {"log_level": "warning", "limit_concurrency": 64, "timeout_graceful_shutdown": 5}
        try:
            Server(uvicorn.Config(app, **settings, **tls)).run(sockets=[listening])
        finally:
            verifier.close()


def _listen(host: str, chosen: int | None) -> socket.socket:
    """A socket at the `chosen` port; without one at `PORT`, or at a free one where that is taken."""
    port = PORT if chosen is None else chosen
    try:
        return listening_socket(host, port)
    except (OSError, OverflowError) as error:
        if chosen is None and getattr(error, "errno", None) == errno.EADDRINUSE:
            return _listen(host, 0)
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"cannot listen at {host}, port {port} ({reason}); give another --host or --port") from error


def _certificates(home: Path) -> dict[str, Any]:
    """uvicorn's settings for TLS in which both sides show a certificate."""
    folder = certs_folder(home)
    return {
        "ssl_certfile": folder / "machine.pem",
        "ssl_keyfile": folder / "machine.key",
        "ssl_ca_certs": str(folder / "authority.pem"),
        "ssl_cert_reqs": ssl.CERT_REQUIRED,
    }


COMMAND = Command("verifier", "judge completions as a service, for runs on other machines", EXAMPLES, _options, _run)
