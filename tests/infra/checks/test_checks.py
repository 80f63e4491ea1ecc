"""Checks of a machine: each says what is wrong and what to do."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra.checks import installed
from infra.checks import machine as checks
from infra.checks.cluster import check_storage_of_cluster, compared_versions, storage_checks
from infra.checks.installed import check_constraints, check_requirements
from infra.checks.machine import (
    Check,
    check_clock,
    check_route,
    check_storage,
    check_versions,
    placement_checks,
    route_checks,
)
from infra.cluster.placement import Offer
from infra.services.addresses import Addresses
from infra.services.scheduler import Seen, WorkerSeen
from infra.storage.mark import leave_mark

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("mine", "theirs", "state"),
    [
        ({"python": "3.11.7"}, {"python": "3.11.2"}, "warn"),
        ({"python": "3.11.7"}, {"python": "3.12.7"}, "fail"),
        ({"torch": "2.13.0+cpu"}, {"torch": "2.13.0+cu128"}, "ok"),
        ({"torch": "2.13.0"}, {"torch": "2.8.0"}, "warn"),
        ({"numpy": "2.4.6"}, {"numpy": "1.26.4"}, "fail"),
        ({"distributed": "2026.8.0"}, {"distributed": "2026.9.0"}, "fail"),
        ({"rlvf": "0.1.0"}, {"rlvf": "0.2.0"}, "fail"),
        ({"msgpack": "1.2.4"}, {}, "ok"),
        ({"rlvf source": "1a2b"}, {"rlvf": "0.1.0", "rlvf source": "1a2b"}, "ok"),
        ({"rlvf source": "1a2b"}, {"rlvf": "0.1.0", "rlvf source": "1a2c"}, "fail"),
        ({"rlvf source": "1a2b", "torch": "2.13.0"}, {"rlvf": "0.1.0", "torch": "2.8.0"}, "fail"),
        ({"rlvf source": "1a2b"}, {"dask": "2026.8.0"}, "ok"),
    ],
)
def test_versions_are_compared_as_far_as_they_matter(mine: dict[str, str], theirs: dict[str, str], state: str) -> None:
    found = check_versions(mine, theirs, "jetson")
    assert found.state == state
    assert bool(found.remedy) == (state != "ok")
    if state != "ok":
        assert "(jetson)" in found.found


def test_only_those_who_differ_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.checks.cluster.versions", lambda: {"torch": "2.13.0"})
    workers = (
        WorkerSeen("same", "a", versions={"torch": "2.13.0"}),
        WorkerSeen("older", "b", versions={"torch": "2.8.0"}),
    )
    (found,) = compared_versions(Seen(workers, versions={"python": "3.11.7"}))
    assert "torch 2.13.0 here, 2.8.0 there (older)" in found.found
    (found,) = compared_versions(Seen(workers[:1], versions={"python": "3.11.7"}))
    assert found.found == "the same as the scheduler and 1 workers"


@pytest.mark.parametrize(("ahead", "state"), [(0.2, "ok"), (-4.9, "ok"), (7.0, "fail"), (-3600.0, "fail")])
def test_clocks_must_agree(ahead: float, state: str) -> None:
    found = check_clock(ahead)
    assert found.state == state
    if state == "fail":
        assert ("behind" if ahead > 0 else "ahead of") in found.found


@pytest.mark.slow
def test_a_storage_is_written_read_and_left_clean(place: str) -> None:
    found = check_storage(place, 1.0)
    assert found.state == "ok"
    assert "MB/s written" in found.found
    assert "MB/s read" in found.found
    from fsspec.core import url_to_fs

    fs, root = url_to_fs(place)
    assert not fs.exists(root) or fs.find(root) == []


def test_a_storage_that_does_not_work_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # "memory:" is the name of a folder, and is made
    (tmp_path / "file").write_text("in the way")
    for uri in (str(tmp_path / "file"), "nosuch://bucket/x", "memory:"):
        found = check_storage(uri)
        if found.state == "ok":
            continue
        assert "\n" not in str(found)
        assert found.remedy
    assert check_storage(str(tmp_path / "file")).state == "fail"
    assert check_storage("nosuch://bucket/x").state == "fail"
    assert "secret" not in str(check_storage("nosuch://me:secret@host/x"))


def test_a_folder_of_another_machine_is_no_storage_here(tmp_path: Path) -> None:
    found = check_storage_of_cluster(str(tmp_path / "none"), 0.01)
    assert (found.state, "not here" in found.found) == ("fail", True)
    assert not (tmp_path / "none").exists()
    assert check_storage_of_cluster(str(tmp_path), 0.01).state == "ok"
    assert check_storage_of_cluster(None, 0.01).state == "ok"


def test_a_storage_of_the_same_name_that_is_not_shared_is_told_from_one_that_is(place: str) -> None:
    mark = leave_mark(place, "laptop")
    (well, shared) = storage_checks(
        None, Addresses(storage=place, storage_mark=mark), "/the/bundle's", "10.0.0.5", 0.01
    )
    assert (well.state, shared.state) == ("ok", "ok")
    other = Addresses(storage=f"{place}/other", storage_mark=mark)
    if Path(place).is_absolute():
        Path(place, "other").mkdir()
    *_, shared = storage_checks(None, other, None, "10.0.0.5", 0.01)
    assert shared.state == "fail"
    assert f"{place}/other here is not the {place}/other of 10.0.0.5" in shared.found
    assert ("rlvf up --storage s3://" in shared.remedy) == Path(place).is_absolute()


def test_a_scheduler_that_knows_of_no_mark_asks_for_none(tmp_path: Path) -> None:
    (well,) = storage_checks(None, Addresses(storage=str(tmp_path)), None, "10.0.0.5", 0.01)
    assert well.state == "ok"
    assert storage_checks(None, Addresses(), str(tmp_path), "10.0.0.5", 0.01) == [well]


def test_a_storage_that_was_chosen_here_counts_and_is_said_to_be_another(tmp_path: Path) -> None:
    theirs = Addresses(storage=f"{tmp_path}/theirs", storage_mark="none-lies-there")
    said, well = storage_checks(str(tmp_path), theirs, None, "10.0.0.5", 0.01)
    assert (said.state, well.state) == ("warn", "ok")
    assert f"{tmp_path} was chosen here, and the cluster on 10.0.0.5 uses {tmp_path}/theirs" in said.found
    leave_mark(str(tmp_path), "laptop")
    same = Addresses(storage=f"file://{tmp_path}")
    assert [check.state for check in storage_checks(f"{tmp_path}/", same, None, "10.0.0.5", 0.01)] == ["ok"]


def test_this_machine_reaches_itself() -> None:
    assert check_route("127.0.0.1").state == "ok"
    assert "127.0.0.1" in route_checks()[-1].found
    assert check_route("203.0.113.7").state == "fail"  # not ours


# Packets to its own address leave by the interface, as on a bond or a VPN, and nobody answers.
NAMESPACE = """
ip link set lo up
ip link add bond7 type veth peer name switch7
ip link set switch7 up
ip address add 10.99.0.1/24 dev bond7
ip link set bond7 up
ip route add default dev bond7
ip route add 10.99.0.1 dev bond7 table 99
ip rule add pref 100 lookup local
ip rule add pref 10 to 10.99.0.1 lookup 99
ip rule del pref 0
exec "$@"
"""


@pytest.mark.slow
def test_an_interface_that_does_not_route_to_itself_is_found(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("needs unshare (util-linux) and ip (iproute2) to make a network of its own")
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("may not make a network namespace here: needs root or CAP_SYS_ADMIN")
    command = [sys.executable, "-c", "from flows.cli import main; main()", "doctor", "--storage", str(tmp_path)]
    done = subprocess.run(
        ["unshare", "--net", "sh", "-ec", NAMESPACE, "sh", *command],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert "Traceback" not in done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("fail")]
    assert "10.99.0.1 (bond7) does not reach itself (no connection in 2 s)" in line
    assert "--host" in line
    assert "GLOO_SOCKET_IFNAME" in line
    assert done.returncode == 1


def test_an_address_that_nothing_uses_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Check("interface", "fail", "10.9.9.9 does not", "do")
    monkeypatch.setattr(checks, "interfaces", lambda: [("10.9.9.9", "tun0")])
    monkeypatch.setattr(checks, "check_route", lambda *_: bad)
    monkeypatch.setattr(checks, "used_addresses", lambda _: {"10.1.1.1"})
    assert [check.state for check in route_checks()] == ["warn"]
    monkeypatch.setattr(checks, "used_addresses", lambda _: {"10.9.9.9"})
    assert [check.state for check in route_checks()] == ["fail"]


def test_a_placement_is_looked_at_call_by_call() -> None:
    there = [Offer("", name, {"CPU": 1.0, "GENERATOR": 1.0}) for name in ("a", "b")]
    named = {"verify": ("worker:b", "worker:c"), "evaluate": ("worker:c",)}
    found = placement_checks(there, {"generate": ("GENERATOR",), "train": ("CUDA", "TRAINER"), **named})
    assert [str(check) for check in found] == [
        "ok    placement   generate needs GENERATOR: 2 workers",
        "fail  placement   train needs CUDA TRAINER: no worker; rlvf worker --roles trainer",
        "ok    placement   verify needs worker:b worker:c: 1 worker",
        "fail  placement   evaluate needs worker:c: no worker; rlvf worker --roles generator",
    ]


def test_what_is_installed_is_what_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert check_requirements().state == "ok"
    monkeypatch.setattr(
        installed.importlib.metadata,
        "requires",
        lambda _: ["numpy>=99", "no-such-package", "alsonot; extra == 'x'", "pip; python_version < '3'"],
    )
    found = check_requirements()
    assert found.state == "fail"
    assert "is not >=99, no-such-package is missing" in found.found
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("# note\nnumpy==0.1\nno-such-package==1\n")
    found = check_constraints(constraints)
    assert found.state == "warn"
    assert "(0.1)" in found.found
    constraints.write_text("")
    assert check_constraints(constraints).state == "ok"


def test_a_distribution_that_is_not_installed_is_named() -> None:
    assert check_requirements("no-such-distribution").state == "fail"
