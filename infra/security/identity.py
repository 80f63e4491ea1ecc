"""The certificates of this machine: one authority per cluster, one certificate per machine.

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

import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import ValidationError

from infra import disk
from infra.home import writing
from infra.security import bundles, certificates
from infra.security.bundles import SECRET, SETTING, Bundle, Settings
from infra.security.certificates import SecurityError

logger = logging.getLogger(__name__)
RENEW_DAYS = 30  # before its end, when this machine's own certificate is made anew
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def certs_folder(home: Path) -> Path:
    """Where the certificates of a home lie."""
    return home / "certs"


def has_certificates(home: Path) -> bool:
    """Whether this home holds a machine's certificate, expired or not."""
    return all((certs_folder(home) / name).is_file() for name in ("authority.pem", "machine.pem", "machine.key"))


def has_authority(home: Path) -> bool:
    """Whether machines are admitted from here."""
    return all((certs_folder(home) / name).is_file() for name in ("authority.pem", "authority.key"))


def make_authority(home: Path, say: Callable[[str], None] = logger.warning) -> None:
    """Make the cluster's authority, unless this home has one that is in force; one that is not is set aside, and a line
    says so: it was made by a clock that was wrong, its time is over, or its key is not its own.

    Raises `SecurityError` where a bundle of another authority is installed: this machine is a guest of that cluster;
    and for a clock that cannot be right.
    """
    with _writing(home):
        _make_authority(home, say)


def _make_authority(home: Path, say: Callable[[str], None]) -> None:
    folder = certs_folder(home)
    if has_authority(home):
        known = _installed(home, "authority.pem")
        fits = certificates.belongs(_key(home, "authority.key"), known)
        if fits and certificates.days_left(known) > 0 and not certificates.begins_later(known):
            return
        certificates.check_clock()
        aside = _aside(folder)
        folder.rename(aside)
        begin, end = known.not_valid_before_utc, known.not_valid_after_utc
        wrong = f"is not in force by the clock here (from {begin:%Y-%m-%d} to {end:%Y-%m-%d})"
        mended = f"if the clock is wrong, set it and put {aside.name} back"
        say(
            f"the authority of {folder} {wrong if fits else 'has the key of another'}: made another. Every other "
            "machine needs a new bundle (rlvf certs NAME), a browser the new authority.pem; "
            + (mended if fits else f"the old one is {aside.name}")
        )
    certificates.check_clock()
    if (folder / "authority.pem").is_file():
        raise SecurityError(
            f"{folder} holds the certificates of another machine's authority: make bundles there, or remove the folder "
            "to begin a cluster of your own"
        )
    certificate, key = certificates.new_authority()
    _make_private(folder)
    # the certificate last: without it the key counts for nothing, and is made anew
    disk.write_file(folder / "authority.key", key.encode(), SECRET)
    disk.write_file(folder / "authority.pem", certificate.encode())


def issue(
    home: Path,
    machine: str,
    addresses: Iterable[str] = (),
    days: float = certificates.MACHINE_DAYS,
    settings: Mapping[str, str] | None = None,
    *,
    scheduler: str | None = None,
) -> Bundle:
    """A bundle for `machine`, with a new key and a certificate over its name and `addresses` (IPs or host names).

    Raises `SecurityError` for a name that is no file name, an address that is none, or without an authority here.
    """
    bundles.check_machine_name(machine)
    unknown = [name for name in settings or {} if not SETTING.fullmatch(name)]
    if unknown:
        raise SecurityError(f"a bundle carries RLVF_STORAGE and AWS_… settings, not {unknown[0]}")
    if not has_authority(home):
        raise SecurityError(f"{certs_folder(home)} has no authority to sign with: run `rlvf certs` where it was made")
    authority, signing_key = ((certs_folder(home) / f"authority.{kind}").read_text() for kind in ("pem", "key"))
    certificate, key = certificates.new_leaf((authority, signing_key), machine, addresses, days)
    return Bundle(
        machine=machine,
        authority=authority,
        certificate=certificate,
        key=key,
        scheduler=scheduler,
        environment=dict(settings or {}),
    )


def install_bundle(file: Path, home: Path) -> Settings:
    """Check the bundle in `file` and put it into this home, in the place of one that was there.

    Raises `SecurityError` as `read_bundle`, and where this home is the authority of another cluster.
    """
    bundle = bundles.read_bundle(file)
    folder = certs_folder(home)
    with _writing(home):
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


def own_certificates(home: Path, addresses: Iterable[str] = (), say: Callable[[str], None] = logger.warning) -> None:
    """Ensure that this machine has a certificate that names `addresses`, is in force and lasts a while; one process at
    a time makes it, or makes it anew. `say` as for `make_authority`.

    A guest of another machine's authority keeps its bundle's. Raises `SecurityError` when that has expired.
    """
    machine = bundles.machine_name()
    wanted = list(dict.fromkeys([machine, *LOOPBACK, *addresses]))
    with _writing(home):
        if has_certificates(home) and not has_authority(home):
            check_certificates(home)
            return
        kept = certificate_names(home)
        _make_authority(home, say)
        if has_certificates(home) and _lasts(home, wanted):
            return
        _install(issue(home, machine, [*wanted, *kept]), home)


def check_certificates(home: Path) -> None:
    """Raise `SecurityError`, saying what to do, unless this machine's certificate is there and in force."""
    if not has_certificates(home):
        raise SecurityError(
            f"no certificates in {certs_folder(home)}: make a bundle with `rlvf certs NAME` on the machine of the "
            "scheduler, copy it here, and install it with `rlvf worker --bundle NAME.bundle`"
        )
    settings = installed_settings(home)
    machine = settings.machine if settings is not None else "NAME"
    certificates.check_dates(_installed(home), "this machine's certificate", bundles.how_to_renew(machine))
    if not _fits(home):
        again = "rlvf up makes others" if has_authority(home) else "install the bundle again"
        raise SecurityError(f"the files of {certs_folder(home)} are not of one certificate: {again}")


def authority(home: Path) -> str | None:
    """The path of the authority's certificate; None without one."""
    file = certs_folder(home) / "authority.pem"
    return str(file) if file.is_file() else None


def certificate_names(home: Path) -> list[str]:
    """The names and addresses that this machine's certificate is for; none without one."""
    return certificates.names(_installed(home)) if has_certificates(home) else []


def days_of_certificate(home: Path) -> float:
    """Days until this machine's certificate expires. Raises `SecurityError` where it has."""
    check_certificates(home)
    return certificates.days_left(_installed(home))


def _install(bundle: Bundle, home: Path) -> Settings:
    folder = certs_folder(home)
    _make_private(folder)
    settings = Settings(machine=bundle.machine, scheduler=bundle.scheduler, environment=bundle.environment)
    disk.write_file(folder / "authority.pem", bundle.authority.encode())
    disk.write_file(folder / "settings.json", settings.model_dump_json(indent=2).encode(), SECRET)
    # the key before its certificate: a kill in between leaves no pair, or one that does not fit, which is noticed
    disk.write_file(folder / "machine.key", bundle.key.encode(), SECRET)
    disk.write_file(folder / "machine.pem", bundle.certificate.encode())
    return settings


@contextmanager
def _writing(home: Path) -> Iterator[None]:
    """Excludes other processes from changing the certificates of this home."""
    with ExitStack() as stack:
        with writing(home):
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = stack.enter_context((home / ".certs.lock").open("a"))  # beside the folder, which may be set aside
        fcntl.flock(lock, fcntl.LOCK_EX)
        disk.sweep_files(certs_folder(home))
        yield


def _aside(folder: Path) -> Path:
    """A name beside the folder that is free."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}.old{number}")).exists():
        number += 1
    return aside


def _make_private(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)


def _installed(home: Path, name: str = "machine.pem") -> x509.Certificate:
    path = certs_folder(home) / name
    return certificates.read_certificate(path.read_text(), str(path))


def _key(home: Path, name: str) -> ec.EllipticCurvePrivateKey:
    path = certs_folder(home) / name
    return certificates.read_key(path.read_text(), str(path))


def _fits(home: Path) -> bool:
    """Whether the installed certificate is of this authority, and the key its own."""
    certificate = _installed(home)
    return certificates.belongs(_key(home, "machine.key"), certificate) and certificates.is_signed_by(
        certificate, _installed(home, "authority.pem")
    )


def _lasts(home: Path, addresses: Iterable[str]) -> bool:
    """Whether the installed certificate fits, names the addresses, is in force and not about to end."""
    certificate = _installed(home)
    return (
        not certificates.begins_later(certificate)
        and _fits(home)
        and certificates.days_left(certificate) > RENEW_DAYS
        and {certificates.canonical(address) for address in addresses} <= set(certificates.names(certificate))
    )
