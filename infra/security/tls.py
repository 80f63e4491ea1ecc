"""Mutual TLS between the machines of a cluster, and no address that is open without it."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from infra.hosts import is_loopback
from infra.security.bundles import machine_name
from infra.security.certificates import SecurityError, new_authority, new_leaf
from infra.security.identity import certs_folder, check_certificates, has_certificates

if TYPE_CHECKING:
    from distributed import Security

logger = logging.getLogger(__name__)
ROLES = ("scheduler", "worker", "client")  # of Dask: each has a certificate of its own, here the same one


def dask_security(home: Path) -> "Security":
    """Mutual TLS for a scheduler, a worker or a client of this machine. Raises `SecurityError`."""
    check_certificates(home)
    folder = certs_folder(home)
    certificate, key = str(folder / "machine.pem"), str(folder / "machine.key")
    return _mutual_tls(str(folder / "authority.pem"), certificate, key)


def temporary_security() -> "Security":
    """Mutual TLS among the processes of one cluster that this process starts: of an authority that nobody else has.

    The keys are in memory only: Dask hands them to its processes through their pipes. The authority's own is forgotten
    here, so that nobody can be admitted later.
    """
    authority = new_authority()
    certificate, key = new_leaf(authority, machine_name(), [])
    return _mutual_tls(authority[0], certificate, key)


def _mutual_tls(authority: str, certificate: str, key: str) -> "Security":
    """`authority`, `certificate` and `key`: PEM, or files with it."""
    from distributed import Security  # here, because it takes half a second to import

    return Security(  # type: ignore[no-untyped-call]
        require_encryption=True,
        tls_ca_file=authority,
        **{f"tls_{role}_cert": certificate for role in ROLES},
        **{f"tls_{role}_key": key for role in ROLES},
    )


def tls_environment(home: Path) -> dict[str, str]:
    """What Dask's own commands need in their environment to do the same. Raises `SecurityError`."""
    check_certificates(home)
    folder = certs_folder(home)
    prefix = "DASK_DISTRIBUTED__COMM__"
    roles = [role.upper() for role in ROLES]
    return {
        f"{prefix}REQUIRE_ENCRYPTION": "True",
        f"{prefix}TLS__CA_FILE": str(folder / "authority.pem"),
        **{f"{prefix}TLS__{role}__CERT": str(folder / "machine.pem") for role in roles},
        **{f"{prefix}TLS__{role}__KEY": str(folder / "machine.key") for role in roles},
    }


def refuse_open_address(host: str, home: Path, insecure: bool) -> None:
    """Raise `SecurityError` for an address that others reach, with neither certificates nor `insecure`."""
    if is_loopback(host) or (has_certificates(home) and not insecure):
        return
    if not insecure:
        raise SecurityError(
            f"host {host} is open to other machines: make certificates with `rlvf certs`, or give --insecure in a "
            "network where you trust everyone"
        )
    logger.warning("INSECURE: everyone who reaches %s can use what listens there", host)
