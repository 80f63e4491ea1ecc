"""Bundles: one file that carries a machine's certificate, key and settings to it. As secret as the key."""

import re
import socket
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infra import disk
from infra.errors import first_fault
from infra.security.certificates import SecurityError, belongs, check_dates, is_signed_by, read_certificate, read_key

BUNDLE_BYTES = 1 << 20
MACHINE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # of file names and of certificates
SETTING = re.compile(r"RLVF_STORAGE|AWS_[A-Z0-9_]+")  # what a bundle may put into an environment, and nothing else
SECRET = 0o600


class Settings(BaseModel):
    """What a bundle says beside its certificates."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: str
    scheduler: str | None = None
    environment: dict[str, str] = Field(default={}, repr=False)  # storage settings, credentials if asked for


class Bundle(Settings):
    """What a machine needs to join, in one file that is as secret as the key in it."""

    authority: str  # PEM
    certificate: str  # PEM
    key: str = Field(repr=False)  # PEM

    def write(self, path: Path) -> None:
        """Write the file, for its owner's eyes only."""
        disk.write_file(path, self.model_dump_json(indent=2).encode(), SECRET)


def read_bundle(file: Path) -> Bundle:
    """The bundle in `file`, checked as a whole.

    Raises `SecurityError` where it cannot be read, is no bundle, or its certificate has expired or does not fit its key
    and authority.
    """
    made = "`rlvf certs NAME` makes it on the scheduler's machine"
    again = "copy it once more, or make a new one with `rlvf certs`"
    try:
        with file.open("rb") as stream:
            content = stream.read(BUNDLE_BYTES + 1)
        bundle = Bundle.model_validate_json(content[:BUNDLE_BYTES])
    except OSError as error:
        raise SecurityError(f"bundle {file}: cannot be read: {error.strerror or error}; {made}") from None
    except ValidationError as error:
        what = ": ".join(filter(None, first_fault(error)))
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
    check_dates(certificate, f"bundle {file}: its certificate", how_to_renew(bundle.machine))
    check_dates(
        authority, f"bundle {file}: its authority", "begin a new cluster with `rlvf certs` on its first machine"
    )
    return bundle


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


def how_to_renew(machine: str) -> str:
    """What to do about an expired certificate of this machine."""
    return f"make a new one with `rlvf certs {machine}` where the authority is, and copy the bundle here"
