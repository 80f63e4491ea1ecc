"""Whether a Dask scheduler can be reached from here, and if not, why: asked of the socket, before Dask tries.

Dask itself retries until a time-out whatever the cause, and its error for a refused certificate depends on which side
notices first. A scheduler greets every connection, over TLS after both certificates were accepted; so one connection
tells.
"""

import re
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from infra.hosts import bracketed, is_loopback
from infra.security.identity import check_certificates, has_certificates
from infra.security.tls import dask_security

PORT = 8786
SECONDS = 5.0
FOR_OTHERS = "`rlvf down`, then `rlvf up --host ADDRESS` there, with a --storage that all machines see"
ADDRESS = re.compile(r"(?:(?P<scheme>tcp|tls)://)?(?P<host>\[[^\]\s]+\]|[^\s/:]+)(?::(?P<port>\d{1,5}))?/?")


class UnreachableError(ValueError):
    """A scheduler that cannot be reached. The message is one line that says why and what to do."""

    def __init__(self, address: str, why: str, *, may_come_back: bool = False) -> None:
        super().__init__(address, why)
        self.address = address
        self.why = why
        self.may_come_back = may_come_back  # trying again can help

    def __str__(self) -> str:
        return f"{self.address}: {self.why}"


@dataclass(frozen=True)
class SchedulerAddress:
    """Where a scheduler listens."""

    scheme: str  # tcp or tls
    host: str  # without brackets
    port: int

    def __str__(self) -> str:
        return f"{self.scheme}://{bracketed(self.host)}:{self.port}"


def parse_address(address: str, home: Path) -> SchedulerAddress:
    """An address as people write it: without a scheme it is TLS where there are certificates, without a port 8786.

    Raises `ValueError`.
    """
    found = ADDRESS.fullmatch(address)
    if found is None:
        raise ValueError(f"{address!r} is no address of a scheduler; write it like tls://192.168.1.5:8786")
    scheme = found["scheme"] or ("tls" if has_certificates(home) else "tcp")
    return SchedulerAddress(scheme, found["host"].strip("[]"), int(found["port"] or PORT))


def connect(address: SchedulerAddress, seconds: float = SECONDS) -> socket.socket:
    """A connection to whatever listens at the address. Raises `UnreachableError`."""
    try:
        return socket.create_connection((address.host, address.port), seconds)
    except socket.gaierror:
        raise UnreachableError(
            str(address), f"no machine is known as {address.host}; check the name, or give its IP address"
        ) from None
    except ConnectionRefusedError:
        why = "nothing listens there: start one with `rlvf up --host ADDRESS` on that machine"
        if is_loopback(address.host):
            why = f"nothing listens there: start one here with `rlvf up`; on another machine: {FOR_OTHERS}"
        raise UnreachableError(str(address), why, may_come_back=True) from None
    except TimeoutError:
        raise _silent(address, seconds) from None
    except OSError as error:
        raise UnreachableError(str(address), f"{error.strerror or error}", may_come_back=True) from None


def reach(address: SchedulerAddress, home: Path, seconds: float = SECONDS) -> str:
    """Connect once and hang up; returns the address of this machine that the connection came from.

    Raises `SecurityError` without a valid certificate for a TLS address, and `UnreachableError`.
    """
    context = None
    if address.scheme == "tls":
        check_certificates(home)
        context = dask_security(home).get_connection_args("client")["ssl_context"]  # type: ignore[no-untyped-call]
    try:
        with connect(address, seconds) as plain:
            here = str(plain.getsockname()[0])
            greeting = _greeting(plain, context, seconds)
    except TimeoutError:
        raise _silent(address, seconds) from None
    except ssl.SSLError as error:
        raise UnreachableError(str(address), _refusal(error, home)) from None
    except ConnectionError:  # a TLS server that got plain text, or a server that is being stopped
        greeting = b""
    except OSError as error:
        raise UnreachableError(str(address), f"{error.strerror or error}", may_come_back=True) from None
    if greeting:
        return here
    if address.scheme == "tcp" and _speaks_tls(address, seconds):
        why = (
            f"refuses plain connections; write tls://…:{address.port}, with certificates (`rlvf worker --bundle FILE`)"
        )
        raise UnreachableError(str(address), why)
    if greeting is None:
        raise _silent(address, seconds)
    raise UnreachableError(str(address), "hung up at once; is it a Dask scheduler?", may_come_back=True)


def _silent(address: SchedulerAddress, seconds: float) -> UnreachableError:
    why = f"no answer in {seconds:g} s; is the address right, the machine awake, and the port open in its firewall?"
    return UnreachableError(str(address), why, may_come_back=True)


def _greeting(plain: socket.socket, context: ssl.SSLContext | None, seconds: float) -> bytes | None:
    """The first byte of a Dask server's greeting; None where it says nothing. Under TLS 1.3 a refused certificate shows
    only here."""
    if context is None:
        plain.settimeout(min(seconds, 2.0))  # a TLS server waits for its client
        try:
            return plain.recv(1)
        except TimeoutError:
            return None
    with context.wrap_socket(plain) as secure:
        return secure.recv(1)


def _speaks_tls(address: SchedulerAddress, seconds: float) -> bool:
    """Whether a TLS server listens, whichever certificates it accepts: by the handshake alone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with socket.create_connection((address.host, address.port), seconds) as plain, context.wrap_socket(plain):
            return True
    except ssl.SSLError as error:
        return "ALERT" in (error.reason or "")
    except OSError:
        return False


def _refusal(error: ssl.SSLError, home: Path) -> str:
    """Why TLS failed, in words. An alert comes from the other side."""
    new = (
        "make a bundle with `rlvf certs NAME` where the scheduler runs and install it here: `rlvf worker --bundle FILE`"
    )
    reason = (error.reason or "").upper()
    if "WRONG_VERSION_NUMBER" in reason or "UNEXPECTED_EOF" in reason or "RECORD_LAYER" in reason:
        return "does not speak TLS; write tcp://…, or start it with certificates (`rlvf up --host`)"
    if isinstance(error, ssl.SSLCertVerificationError):
        if "expired" in error.verify_message:
            return "its certificate has expired; restart `rlvf up` there, which makes a new one"
        if "not yet valid" in error.verify_message:
            return "its certificate is not valid yet: set the clocks of both machines"
        return f"its certificate is of another authority than {home / 'certs'} trusts ({error.verify_message}); {new}"
    if "EXPIRED" in reason:
        return f"refuses this machine's certificate as expired; {new}, and check the clocks"
    if "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason or "DECRYPT_ERROR" in reason:
        return f"refuses this machine's certificate, which its authority has not signed; {new}"
    if "CERTIFICATE_REQUIRED" in reason or "HANDSHAKE_FAILURE" in reason:
        return f"wants a certificate of this machine; {new}"
    return f"TLS failed: {error.reason or error}"
