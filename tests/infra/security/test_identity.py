"""Certificates that several processes make at once, or one that is killed while it does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra.security.certificates import SecurityError, belongs, is_signed_by, read_certificate, read_key
from infra.security.identity import check_certificates, install_bundle, issue, make_authority, own_certificates
from infra.security.tls import dask_security
from tests.processes import started

FILES = ("authority.key", "authority.pem", "settings.json", "machine.key", "machine.pem")
ALL_AT_ONCE = """
import os, sys
from pathlib import Path
from infra.security.identity import own_certificates
homes = [Path(line) for line in sys.argv[1:]]
print("ready", flush=True)
sys.stdin.readline()
for home in homes:
    own_certificates(home)
"""
KILLED = """
import os, signal, sys
from pathlib import Path
from infra.security import identity
home, name, moment, address = sys.argv[1:]
write, replace = identity.disk.write_file, Path.replace
def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)
def until_there(path, *rest):
    if path.name == name:
        if moment == "before":
            killed()
        Path.replace = killed
    write(path, *rest)
identity.disk.write_file = until_there
identity.own_certificates(Path(home), [address])
"""


def fits(home: Path) -> bool:
    """Whether each key is that of its certificate, and the machine's is signed by the authority."""
    text = {name: (home / "certs" / name).read_text() for name in FILES}
    authority, machine = (read_certificate(text[f"{name}.pem"], name) for name in ("authority", "machine"))
    keys = [read_key(text[f"{name}.key"], name) for name in ("authority", "machine")]
    return belongs(keys[0], authority) and belongs(keys[1], machine) and is_signed_by(machine, authority)


def test_processes_that_start_at_once_make_one_authority(tmp_path: Path) -> None:
    homes = [tmp_path / str(number) for number in range(20)]
    command = (sys.executable, "-c", ALL_AT_ONCE, *homes)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with started(*command, **pipes) as one, started(*command, **pipes) as two, started(*command, **pipes) as three:
        processes = (one, two, three)
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes:
            _, err = process.communicate(timeout=120)
            assert process.returncode == 0, err
    assert [home.name for home in homes if not fits(home)] == []


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["before", "within"])
@pytest.mark.parametrize(
    ("again", "name"),
    [*((False, name) for name in FILES), *((True, name) for name in FILES[1:])],  # a renewal leaves the authority's key
)
def test_the_next_start_heals_what_a_killed_one_left(tmp_path: Path, name: str, moment: str, again: bool) -> None:
    if again:
        own_certificates(tmp_path)
    known = (tmp_path / "certs" / "authority.pem").read_bytes() if again else None
    command = [sys.executable, "-c", KILLED, str(tmp_path), name, moment, "10.9.8.7"]
    assert subprocess.run(command, check=False, env={**os.environ}).returncode == -signal.SIGKILL
    said: list[str] = []
    own_certificates(tmp_path, ["10.9.8.7"], said.append)
    assert fits(tmp_path)
    dask_security(tmp_path).get_listen_args("scheduler")  # loads them
    assert said == []
    if again:
        assert (tmp_path / "certs" / "authority.pem").read_bytes() == known  # other machines trust it
    assert sorted(path.name for path in (tmp_path / "certs").iterdir()) == sorted(FILES)


def test_an_authority_with_the_key_of_another_is_replaced_and_said(tmp_path: Path) -> None:
    own_certificates(tmp_path / "home")
    make_authority(tmp_path / "other")
    key = (tmp_path / "other" / "certs" / "authority.key").read_text()
    (tmp_path / "home" / "certs" / "authority.key").write_text(key)
    said: list[str] = []
    own_certificates(tmp_path / "home", (), said.append)
    assert fits(tmp_path / "home")
    assert len(said) == 1
    assert "has the key of another: made another. Every other machine needs a new bundle" in said[0]


def test_a_guest_whose_bundle_is_half_installed_is_told_to_install_it_again(tmp_path: Path) -> None:
    own_certificates(tmp_path / "first")
    bundle = tmp_path / "jetson.bundle"
    issue(tmp_path / "first", "jetson").write(bundle)
    guest = tmp_path / "guest"
    install_bundle(bundle, guest)
    (guest / "certs" / "machine.key").write_text(issue(tmp_path / "first", "jetson").key)
    for use in (check_certificates, own_certificates, dask_security):
        with pytest.raises(SecurityError, match="are not of one certificate: install the bundle again"):
            use(guest)
    install_bundle(bundle, guest)
    check_certificates(guest)
