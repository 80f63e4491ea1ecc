"""Certificates, bundles, and where they lie."""

import datetime
import json
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from infra.security import certificates
from infra.security.bundles import Bundle, machine_name
from infra.security.certificates import SecurityError, names, read_certificate
from infra.security.identity import (
    check_certificates,
    has_certificates,
    install_bundle,
    installed_settings,
    issue,
    make_authority,
    own_certificates,
)
from infra.security.tls import dask_security, refuse_open_address, tls_environment


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home where the authority is."""
    home = tmp_path_factory.mktemp("first")
    own_certificates(home, ["10.0.0.1"])
    return home


def written(bundle: Bundle, folder: Path, **changes: Any) -> Path:
    """The bundle as a file, with these fields changed."""
    file = folder / "jetson.bundle"
    file.write_text(json.dumps(bundle.model_dump() | changes))
    return file


def leaf(home: Path) -> x509.Certificate:
    return read_certificate((home / "certs" / "machine.pem").read_text(), "leaf")


def test_a_bundle_makes_a_machine_a_member(first: Path, tmp_path: Path) -> None:
    bundle = issue(
        first, "jetson", ["10.0.0.7", "fe80::1", "jetson.lan"], 30, {"RLVF_STORAGE": "s3://b/p"}, scheduler="tls://h:1"
    )
    file = tmp_path / "jetson.bundle"
    bundle.write(file)
    assert mode(file) == 0o600
    home = tmp_path / "guest"
    assert not has_certificates(home)
    settings = install_bundle(file, home)
    assert settings == installed_settings(home)
    assert (settings.machine, settings.scheduler) == ("jetson", "tls://h:1")
    assert settings.environment == {"RLVF_STORAGE": "s3://b/p"}
    assert has_certificates(home)
    assert names(leaf(home)) == ["jetson", "10.0.0.7", "fe80::1", "jetson.lan"]
    assert dask_security(home).require_encryption
    assert bundle.key not in repr(bundle)


def test_only_the_owner_reads_a_key(first: Path) -> None:
    previous = os.umask(0)
    try:
        make_authority(first)
    finally:
        os.umask(previous)
    folder = first / "certs"
    assert mode(folder) == 0o700
    assert {mode(folder / name) for name in ("authority.key", "machine.key", "settings.json")} == {0o600}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"machine": "../evil"}, "machine '../evil': give a short name"),
        ({"machine": ""}, "machine '': give a short name"),
        ({"key": "no key"}, "key is no private key in PEM"),
        ({"certificate": "none"}, "certificate is no certificate in PEM"),
        ({"authority": None}, "is none .authority: "),
        ({"extra": 1}, "is none .extra: "),
        ({"environment": {"LD_PRELOAD": "/tmp/x.so"}}, "sets LD_PRELOAD, which no bundle"),
    ],
)
def test_a_broken_bundle_is_refused_in_one_line(
    first: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    bundle = issue(first, "jetson")
    with pytest.raises(SecurityError, match=message) as refusal:
        install_bundle(written(bundle, tmp_path, **changes), tmp_path / "home")
    assert "\n" not in str(refusal.value)
    assert bundle.key.splitlines()[1] not in str(refusal.value)
    assert not (tmp_path / "home").exists()


def test_a_file_that_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match=r"cannot be read: No such file.*`rlvf certs NAME` makes it"):
        install_bundle(tmp_path / "none", tmp_path / "home")
    (tmp_path / "text").write_bytes(b"\x00not json")
    with pytest.raises(SecurityError, match=r"text: is none .*copy it once more"):
        install_bundle(tmp_path / "text", tmp_path / "home")
    with pytest.raises(SecurityError, match="cannot be read: Is a directory"):
        install_bundle(tmp_path, tmp_path / "home")


def test_keys_and_signatures_that_do_not_fit_are_refused(first: Path, tmp_path: Path) -> None:
    mine, other = issue(first, "jetson"), issue(first, "laptop")
    with pytest.raises(SecurityError, match="its key is not that of its certificate"):
        install_bundle(written(mine, tmp_path, key=other.key), tmp_path / "home")
    make_authority(tmp_path / "elsewhere")
    foreign = issue(tmp_path / "elsewhere", "jetson")
    with pytest.raises(SecurityError, match="not signed by its authority"):
        install_bundle(written(mine, tmp_path, authority=foreign.authority), tmp_path / "home")


def test_an_expired_certificate_is_refused_with_the_command_that_makes_another(first: Path, tmp_path: Path) -> None:
    over = written(issue(first, "jetson", days=-1), tmp_path)
    with pytest.raises(SecurityError, match=r"expired on 2\d{3}-.* `rlvf certs jetson`"):
        install_bundle(over, tmp_path / "home")
    home = tmp_path / "later"
    install_bundle(written(issue(first, "jetson"), tmp_path), home)
    (home / "certs" / "machine.pem").write_text(issue(first, "jetson", days=-1).certificate)
    for use in (dask_security, tls_environment, check_certificates):
        with pytest.raises(SecurityError, match=r"this machine's certificate expired .* `rlvf certs jetson`"):
            use(home)


def test_a_guest_neither_admits_machines_nor_founds_a_cluster(first: Path, tmp_path: Path) -> None:
    home = tmp_path / "guest"
    install_bundle(written(issue(first, "jetson"), tmp_path), home)
    with pytest.raises(SecurityError, match="no authority to sign with"):
        issue(home, "another")
    with pytest.raises(SecurityError, match="another machine's authority"):
        make_authority(home)
    before = leaf(home)
    own_certificates(home, ["10.9.9.9"])
    assert leaf(home) == before


def test_the_authority_of_a_cluster_does_not_become_a_guest_of_another(first: Path, tmp_path: Path) -> None:
    make_authority(tmp_path / "elsewhere")
    foreign = written(issue(tmp_path / "elsewhere", "jetson"), tmp_path)
    before = leaf(first)
    with pytest.raises(SecurityError, match="of another cluster"):
        install_bundle(foreign, first)
    assert leaf(first) == before


def test_own_certificates_are_made_anew_only_when_needed(tmp_path: Path) -> None:
    own_certificates(tmp_path, ["10.0.0.1"])
    first = leaf(tmp_path)
    assert {machine_name(), "127.0.0.1", "::1", "localhost", "10.0.0.1"} <= set(names(first))
    own_certificates(tmp_path, ["10.0.0.1"])
    assert leaf(tmp_path) == first
    own_certificates(tmp_path, ["10.0.0.2"])
    second = leaf(tmp_path)
    assert {"10.0.0.1", "10.0.0.2"} <= set(names(second))
    (tmp_path / "certs" / "machine.pem").write_text(issue(tmp_path, machine_name(), names(second), days=5).certificate)
    own_certificates(tmp_path, ["10.0.0.1"])
    assert leaf(tmp_path) != second
    assert "10.0.0.2" in names(leaf(tmp_path))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock so many days ahead of the real one."""
    return lambda days: monkeypatch.setattr(
        certificates, "now", lambda: datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=days)
    )


@pytest.mark.parametrize("made", [3000, -3700])
def test_an_authority_made_by_a_wrong_clock_is_replaced_and_said(
    made: float, tmp_path: Path, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as then:
        then.setattr(certificates, "WRITTEN", datetime.datetime.fromtimestamp(0, datetime.UTC))
        clock(made)
        own_certificates(tmp_path, ["10.0.0.1"])
    wrong = (tmp_path / "certs" / "authority.pem").read_text()
    clock(0)
    said: list[str] = []
    own_certificates(tmp_path, ["10.0.0.2"], said.append)
    check_certificates(tmp_path)
    dask_security(tmp_path)
    right = leaf(tmp_path)
    assert right.not_valid_before_utc < datetime.datetime.now(datetime.UTC) < right.not_valid_after_utc
    assert {"10.0.0.1", "10.0.0.2"} <= set(names(right))
    issue(tmp_path, "jetson").write(tmp_path / "jetson.bundle")
    install_bundle(tmp_path / "jetson.bundle", tmp_path / "jetson")
    assert len(said) == 1
    assert "Every other machine needs a new bundle (rlvf certs NAME)" in said[0]
    assert (tmp_path / "certs.old1" / "authority.pem").read_text() == wrong  # if it is the clock that is wrong now
    assert mode(tmp_path / "certs") == mode(tmp_path / "certs.old1") == 0o700
    own_certificates(tmp_path, ["10.0.0.2"], said.append)
    assert leaf(tmp_path) == right
    assert len(said) == 1


def test_a_certificate_that_is_not_in_force_yet_is_made_anew_by_the_same_authority(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    own_certificates(tmp_path)
    authority = (tmp_path / "certs" / "authority.pem").read_text()
    clock(400)  # as a resume of a laptop may set it for a moment
    (tmp_path / "certs" / "machine.pem").write_text(
        issue(tmp_path, machine_name(), [*names(leaf(tmp_path))]).certificate
    )
    clock(0)
    with pytest.raises(SecurityError, match=r"begins on .* set the clock; if this one is right"):
        check_certificates(tmp_path)
    said: list[str] = []
    own_certificates(tmp_path, (), said.append)
    check_certificates(tmp_path)
    assert (tmp_path / "certs" / "authority.pem").read_text() == authority
    assert said == []


def test_a_clock_that_cannot_be_right_makes_and_replaces_no_authority(
    tmp_path: Path, clock: Callable[[float], None]
) -> None:
    own_certificates(tmp_path / "there")
    before = leaf(tmp_path / "there")
    clock(-20000)  # without a battery a clock begins in 1970
    for home in (tmp_path / "there", tmp_path / "new"):
        with pytest.raises(SecurityError, match="set the clock"):
            own_certificates(home)
    clock(0)
    own_certificates(tmp_path / "there")
    assert leaf(tmp_path / "there") == before
    assert not (tmp_path / "new" / "certs").exists()


def test_without_certificates_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match=r"no certificates in .*`rlvf certs NAME`.*--bundle"):
        dask_security(tmp_path)
    with pytest.raises(SecurityError, match="no authority"):
        issue(tmp_path, "jetson")


@pytest.mark.parametrize("address", ["10.0.0.1:80", "a b", "", "tls://h"])
def test_an_address_that_is_none_is_refused(first: Path, address: str) -> None:
    with pytest.raises(SecurityError, match="give an IP address or a host name"):
        issue(first, "jetson", [address])


def test_settings_beside_storage_are_not_issued(first: Path) -> None:
    with pytest.raises(SecurityError, match="RLVF_STORAGE and AWS_… settings, not PYTHONPATH"):
        issue(first, "jetson", settings={"PYTHONPATH": "/tmp"})


@pytest.mark.parametrize("host", ["0.0.0.0", "10.1.2.3", "::", "example.org", ""])
def test_an_open_address_needs_certificates_or_a_word(
    host: str, first: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SecurityError, match="`rlvf certs`, or give --insecure"):
        refuse_open_address(host, tmp_path, insecure=False)
    refuse_open_address(host, first, insecure=False)
    with caplog.at_level(logging.WARNING):
        refuse_open_address(host, tmp_path, insecure=True)
    assert "INSECURE: everyone who reaches" in caplog.text


@pytest.mark.parametrize("host", ["127.0.0.1", "127.5.5.5", "::1", "[::1]", "localhost"])
def test_an_address_of_this_machine_alone_needs_nothing(host: str, tmp_path: Path) -> None:
    refuse_open_address(host, tmp_path, insecure=False)
