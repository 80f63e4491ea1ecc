"""X.509 certificates of a cluster's authority and of its machines, as PEM text. EC P-256, SHA-256."""

import datetime
import ipaddress
import re
from collections.abc import Iterable

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
MACHINE_DAYS = 825  # what browsers and Apple's libraries still accept of a leaf
SKEW = datetime.timedelta(days=1)  # certificates begin so long ago: the clocks of small machines are often behind
WRITTEN = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)  # this file; a clock that is behind it is wrong


class SecurityError(ValueError):
    """Certificates that are missing, wrong or expired, or an address that must not be open without them."""


def new_authority() -> tuple[str, str]:
    """A self-signed authority that can sign machines only: its certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"rlvf {x509.random_serial_number():x}"[:21])])
    certificate = (
        _builder(name, name, key.public_key(), AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate), _pem_of_key(key)


def new_leaf(
    authority: tuple[str, str], machine: str, addresses: Iterable[str], days: float = MACHINE_DAYS
) -> tuple[str, str]:
    """A machine's certificate, for serving and calling, over its name and addresses, and its key.

    Raises `SecurityError` for an address that is neither an IP nor a host name, and for an expired authority.
    """
    signer, signer_key = read_certificate(authority[0], "the authority"), read_key(authority[1], "the authority's key")
    check_dates(signer, "the authority", "rlvf up makes another, and then every machine needs a new bundle")
    key = ec.generate_private_key(ec.SECP256R1())
    names = list(dict.fromkeys([_general_name(machine), *map(_general_name, addresses)]))
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, machine)])
    certificate = (
        _builder(subject, signer.subject, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key()), critical=False)
        .sign(signer_key, hashes.SHA256())
    )
    return _pem(certificate), _pem_of_key(key)


def read_certificate(pem: str, what: str) -> x509.Certificate:
    """The certificate in `pem`; a `SecurityError` calls it `what`."""
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except ValueError:
        raise SecurityError(f"{what} is no certificate in PEM") from None


def read_key(pem: str, what: str) -> ec.EllipticCurvePrivateKey:
    """The private key in `pem`; a `SecurityError` calls it `what`."""
    try:
        key = serialization.load_pem_private_key(pem.encode(), password=None)
    except (ValueError, TypeError):
        raise SecurityError(f"{what} is no private key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise SecurityError(f"{what} is no key of the kind that `rlvf certs` makes")
    return key


def belongs(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> bool:
    """Whether the certificate is the key's."""
    return key.public_key() == certificate.public_key()


def is_signed_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether `authority` signed `certificate`."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def check_dates(certificate: x509.Certificate, what: str, remedy: str) -> None:
    """Raise `SecurityError` unless the certificate is in force now."""
    if now() > certificate.not_valid_after_utc:
        raise SecurityError(f"{what} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; {remedy}")
    if begins_later(certificate):
        raise SecurityError(
            f"{what} begins on {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC and the clock here says "
            f"{now():%Y-%m-%d %H:%M}: set the clock; if this one is right, that of the authority was wrong: {remedy}"
        )


def now() -> datetime.datetime:
    """The time in UTC."""
    return datetime.datetime.now(datetime.UTC)


def check_clock() -> None:
    """Raise `SecurityError` where the clock is certainly behind: what is made now would be over when it is set."""
    if now() < WRITTEN:
        raise SecurityError(f"the clock here says {now():%Y-%m-%d %H:%M} UTC, which is long past: set the clock")


def begins_later(certificate: x509.Certificate) -> bool:
    """Whether the certificate is not in force yet: the clock is behind, or was ahead when it was made."""
    return now() < certificate.not_valid_before_utc


def days_left(certificate: x509.Certificate) -> float:
    """Days until the certificate expires."""
    return (certificate.not_valid_after_utc - now()) / datetime.timedelta(days=1)


def names(certificate: x509.Certificate) -> list[str]:
    """The host names and IP addresses in a machine's certificate."""
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in found]


def canonical(address: str) -> str:
    """An address as `names` gives it. Raises `SecurityError`."""
    return str(_general_name(address).value)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    begin = now()
    end = begin + datetime.timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(begin, end) - SKEW)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address.strip("[]")))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", address):
        raise SecurityError(f"address {address!r}: give an IP address or a host name, without a port")
    return x509.DNSName(address)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _pem_of_key(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
