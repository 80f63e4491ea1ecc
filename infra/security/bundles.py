"""Certificates: one authority per cluster, one leaf per machine, and bundles that carry a leaf to its machine.

A Dask connection can run any code, so only machines that hold a certificate of the cluster's authority may have one.
The same leaf serves and calls. Dask checks that the other side's certificate is signed by the authority and not that it
names the address dialled: every machine of a cluster is trusted alike. Servers beside Dask (Prefect, MLflow) use the
names and addresses in it.

    <home>/certs/authority.pem   whom to trust
    <home>/certs/authority.key   only where the authority was made: whoever holds it can admit machines
    <home>/certs/machine.pem     this machine's certificate
    <home>/certs/machine.key     and its key
    <home>/certs/settings.json   what else came with the bundle: the scheduler's address, storage settings
"""

import logging
import os
import re
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from cryptography import x509
from distributed import Security
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infra.security.certificates import (
    MACHINE_DAYS,
    SecurityError,
    belongs,
    canonical,
    check_dates,
    days_left,
    is_signed_by,
    names,
    new_authority,
    new_leaf,
    read_certificate,
    read_key,
)
from infra.services.prefect_server import is_loopback
from infra.storage import disk

__all__ = ["Bundle", "SecurityError", "Settings"]

logger = logging.getLogger(__name__)
RENEW_DAYS = 30  # so long before its end this machine's own certificate is made anew
SECRET = 0o600
BUNDLE_BYTES = 1 << 20
MACHINE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # of file names and of certificates
SETTING = re.compile(r"RLVF_STORAGE|AWS_[A-Z0-9_]+")  # what a bundle may put into an environment, and nothing else
LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Bundle(BaseModel):
    """What a machine needs to join, in one file that is as secret as the key in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: str
    authority: str  # PEM
    certificate: str  # PEM
    key: str = Field(repr=False)  # PEM
    scheduler: str | None = None
    environment: dict[str, str] = Field(default={}, repr=False)  # storage settings, credentials if asked for

    def write(self, path: Path) -> None:
        """Write the file, for its owner's eyes only."""
        disk.write_file(path, self.model_dump_json(indent=2).encode(), SECRET)


class Settings(BaseModel):
    """What an installed bundle said beside its certificates."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: str
    scheduler: str | None = None
    environment: dict[str, str] = Field(default={}, repr=False)


def certs_folder(home: Path) -> Path:
    """Where the certificates of a home lie."""
    return home / "certs"


def has_certificates(home: Path) -> bool:
    """Whether this home holds a machine's certificate, be it over or not."""
    return all((certs_folder(home) / name).is_file() for name in ("authority.pem", "machine.pem", "machine.key"))


def has_authority(home: Path) -> bool:
    """Whether machines are admitted from here."""
    return (certs_folder(home) / "authority.key").is_file()


def make_authority(home: Path) -> None:
    """Make the cluster's authority, unless this home has one.

    Raises `SecurityError` where a bundle of another authority is installed: this machine is a guest of that cluster.
    """
    folder = certs_folder(home)
    if has_authority(home):
        return
    if (folder / "authority.pem").is_file():
        raise SecurityError(
            f"{folder} holds the certificates of another machine's authority: make bundles there, or remove the folder "
            "to begin a cluster of your own"
        )
    certificate, key = new_authority()
    _make_private(folder)
    disk.write_file(folder / "authority.key", key.encode(), SECRET)
    disk.write_file(folder / "authority.pem", certificate.encode())


def issue(
    home: Path,
    machine: str,
    addresses: Iterable[str] = (),
    days: float = MACHINE_DAYS,
    settings: Mapping[str, str] | None = None,
    *,
    scheduler: str | None = None,
) -> Bundle:
    """A bundle for `machine`, with a new key and a certificate over its name and `addresses` (IPs or host names).

    Raises `SecurityError` for a name that is no file name, an address that is none, or without an authority here.
    """
    check_machine_name(machine)
    unknown = [name for name in settings or {} if not SETTING.fullmatch(name)]
    if unknown:
        raise SecurityError(f"a bundle carries RLVF_STORAGE and AWS_… settings, not {unknown[0]}")
    if not has_authority(home):
        raise SecurityError(f"{certs_folder(home)} has no authority to sign with: run `rlvf certs` where it was made")
    authority = tuple((certs_folder(home) / f"authority.{kind}").read_text() for kind in ("pem", "key"))
    certificate, key = new_leaf((authority[0], authority[1]), machine, addresses, days)
    return Bundle(
        machine=machine,
        authority=authority[0],
        certificate=certificate,
        key=key,
        scheduler=scheduler,
        environment=dict(settings or {}),
    )


def read_bundle(file: Path) -> Bundle:
    """The bundle in `file`, checked as a whole.

    Raises `SecurityError`: not there, no bundle, a certificate that is over or that key and authority do not fit.
    """
    again = "copy it once more, or make a new one with `rlvf certs`"
    try:
        with file.open("rb") as stream:
            content = stream.read(BUNDLE_BYTES + 1)
        bundle = Bundle.model_validate_json(content[:BUNDLE_BYTES])
    except OSError as error:
        raise SecurityError(f"bundle {file}: cannot be read: {error.strerror or error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]  # the input would be the key
        field = ".".join(map(str, first["loc"]))
        what = f"{field}: {first['msg']}" if field else first["msg"]
        raise SecurityError(f"bundle {file}: is none ({what}); {again}") from None
    check_machine_name(bundle.machine)
    unknown = [name for name in bundle.environment if not SETTING.fullmatch(name)]
    if unknown:
        raise SecurityError(f"bundle {file}: sets {unknown[0]}, which no bundle of rlvf does; {again}")
    authority = read_certificate(bundle.authority, f"bundle {file}: authority")
    certificate = read_certificate(bundle.certificate, f"bundle {file}: certificate")
    if not belongs(read_key(bundle.key, f"bundle {file}: key"), certificate):
        raise SecurityError(f"bundle {file}: its key is not that of its certificate; {again}")
    if not is_signed_by(certificate, authority):
        raise SecurityError(f"bundle {file}: its certificate is not signed by its authority; {again}")
    check_dates(certificate, f"bundle {file}: its certificate", _renew(bundle.machine))
    check_dates(
        authority, f"bundle {file}: its authority", "begin a new cluster with `rlvf certs` on its first machine"
    )
    return bundle


def install_bundle(file: Path, home: Path) -> Settings:
    """Check the bundle in `file` and put it into this home, in the place of one that was there.

    Raises `SecurityError` as `read_bundle`, and where this home is the authority of another cluster.
    """
    bundle = read_bundle(file)
    folder = certs_folder(home)
    if has_authority(home) and (folder / "authority.pem").read_text().strip() != bundle.authority.strip():
        raise SecurityError(
            f"bundle {file}: is of another cluster than the one whose authority is {folder}; use another home "
            "(RLVF_HOME), or remove that folder to leave that cluster"
        )
    return _install(bundle, home)


def installed_settings(home: Path) -> Settings | None:
    """What the bundle that is installed here said; None without one."""
    try:
        return Settings.model_validate_json((certs_folder(home) / "settings.json").read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError:
        raise SecurityError(f"{certs_folder(home) / 'settings.json'} is broken: install the bundle again") from None


def adopt_settings(home: Path) -> Settings | None:
    """`installed_settings`, whose storage settings this process and its children use unless they are set already."""
    settings = installed_settings(home)
    for name, value in (settings.environment if settings is not None else {}).items():
        os.environ.setdefault(name, value)
    return settings


def own_certificates(home: Path, addresses: Iterable[str] = ()) -> None:
    """See to it that this machine has a certificate that names `addresses` and lasts a while: made, or made anew.

    A guest of another machine's authority keeps what its bundle brought. Raises `SecurityError` when that is over.
    """
    machine = machine_name()
    wanted = list(dict.fromkeys([machine, *LOOPBACK, *addresses]))
    if has_certificates(home) and not has_authority(home):
        check_certificates(home)
        return
    make_authority(home)
    if has_certificates(home) and _lasts(home, wanted):
        return
    known = names(_installed(home)) if has_certificates(home) else []
    _install(issue(home, machine, [*wanted, *known]), home)


def check_certificates(home: Path) -> None:
    """Raise `SecurityError`, saying what to do, unless this machine's certificate is there and in force."""
    if not has_certificates(home):
        raise SecurityError(
            f"no certificates in {certs_folder(home)}: make a bundle with `rlvf certs NAME` on the machine of the "
            "scheduler, copy it here, and install it with `rlvf worker --bundle NAME.bundle`"
        )
    settings = installed_settings(home)
    machine = settings.machine if settings is not None else "NAME"
    check_dates(_installed(home), "this machine's certificate", _renew(machine))


def days_of_certificate(home: Path) -> float:
    """How long this machine's certificate will last. Raises `SecurityError` where it does not any more."""
    check_certificates(home)
    return days_left(_installed(home))


def dask_security(home: Path) -> Security:
    """Mutual TLS for a scheduler, a worker or a client of this machine. Raises `SecurityError`."""
    check_certificates(home)
    folder = certs_folder(home)
    certificate, key = str(folder / "machine.pem"), str(folder / "machine.key")
    return Security(  # type: ignore[no-untyped-call]
        require_encryption=True,
        tls_ca_file=str(folder / "authority.pem"),
        **{f"tls_{role}_cert": certificate for role in ("scheduler", "worker", "client")},
        **{f"tls_{role}_key": key for role in ("scheduler", "worker", "client")},
    )


def tls_environment(home: Path) -> dict[str, str]:
    """What Dask's own commands need in their environment to do the same. Raises `SecurityError`."""
    check_certificates(home)
    folder = certs_folder(home)
    prefix = "DASK_DISTRIBUTED__COMM__"
    roles = ("SCHEDULER", "WORKER", "CLIENT")
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


def check_machine_name(machine: str) -> None:
    """Raise `SecurityError` unless `machine` can name a file and a certificate."""
    if not MACHINE.fullmatch(machine):
        raise SecurityError(
            f"machine {machine!r}: give a short name of letters, digits, dots, dashes and underscores, such as jetson"
        )


def machine_name() -> str:
    """What this machine is called, as a name that `check_machine_name` accepts."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname()).strip("-._")[:63].strip("-._")
    return name or "machine"


def _install(bundle: Bundle, home: Path) -> Settings:
    folder = certs_folder(home)
    _make_private(folder)
    settings = Settings(machine=bundle.machine, scheduler=bundle.scheduler, environment=bundle.environment)
    disk.write_file(folder / "authority.pem", bundle.authority.encode())
    disk.write_file(folder / "machine.key", bundle.key.encode(), SECRET)
    disk.write_file(folder / "machine.pem", bundle.certificate.encode())
    disk.write_file(folder / "settings.json", settings.model_dump_json(indent=2).encode(), SECRET)
    return settings


def _make_private(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def _installed(home: Path, name: str = "machine.pem") -> x509.Certificate:
    path = certs_folder(home) / name
    return read_certificate(path.read_text(), str(path))


def _lasts(home: Path, addresses: Iterable[str]) -> bool:
    """Whether the installed certificate is of this authority, names the addresses and is not about to end."""
    certificate = _installed(home)
    return (
        is_signed_by(certificate, _installed(home, "authority.pem"))
        and days_left(certificate) > RENEW_DAYS
        and {canonical(address) for address in addresses} <= set(names(certificate))
    )


def _renew(machine: str) -> str:
    return f"make a new one with `rlvf certs {machine}` where the authority is, and copy the bundle here"
