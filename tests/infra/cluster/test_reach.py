"""Who gets into a TLS cluster and who does not: a real scheduler, and one clear line on both sides."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from infra.cluster.cluster import ClusterError, cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import offers
from infra.cluster.reach import SchedulerAddress, UnreachableError, parse_address, reach
from infra.security.certificates import SecurityError
from infra.security.identity import issue, own_certificates
from infra.security.tls import dask_security
from tests.processes import until


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of the cluster's authority."""
    home = tmp_path_factory.mktemp("first")
    own_certificates(home)
    return home


@pytest.fixture(scope="module")
def tls(first: Path, start_scheduler: Any) -> Any:
    return start_scheduler(first)


@pytest.fixture(scope="module")
def plain(start_scheduler: Any) -> Any:
    return start_scheduler()


def at(scheduler: Any, **changes: Any) -> SchedulerAddress:
    address = parse_address(scheduler.address, Path("none"))
    return SchedulerAddress(**{"scheme": address.scheme, "host": address.host, "port": address.port, **changes})


def with_files(home: Path, authority: str, certificate: str, key: str) -> Path:
    """A home with these certificates, checked by nobody."""
    (home / "certs").mkdir(parents=True)
    for name, text in {"authority.pem": authority, "machine.pem": certificate, "machine.key": key}.items():
        (home / "certs" / name).write_text(text)
    return home


def refusal(address: SchedulerAddress, home: Path) -> str:
    """The one line of a refusal, which comes within seconds."""
    begin = time.monotonic()
    with pytest.raises(UnreachableError) as refused:
        reach(address, home)
    assert time.monotonic() - begin < 8
    assert "\n" not in str(refused.value)
    return str(refused.value)


def said(scheduler: Any, words: str) -> None:
    """The scheduler logs one line with these words, which says who was refused, and no traceback."""
    until(lambda: words in scheduler.log.read_text())
    (line, *_) = [line for line in scheduler.log.read_text().splitlines() if words in line]
    assert "TLS handshake failed with remote 'tls://127.0.0.1:" in line
    assert "Traceback" not in scheduler.log.read_text()


@pytest.mark.slow
def test_a_member_gets_in(tls: Any, first: Path, plain: Any, tmp_path: Path) -> None:
    assert reach(at(tls), first) == "127.0.0.1"
    assert reach(at(plain), tmp_path) == "127.0.0.1"


def test_no_certificate_is_refused_on_both_sides(tls: Any, first: Path, tmp_path: Path) -> None:
    with pytest.raises(SecurityError, match=r"no certificates in .*`rlvf certs NAME`"):
        reach(at(tls), tmp_path)
    context = ssl.create_default_context(cafile=str(first / "certs" / "authority.pem"))
    context.check_hostname = False
    with (
        pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"),
        socket.create_connection(("127.0.0.1", at(tls).port), 5) as raw,
        context.wrap_socket(raw) as secure,
    ):
        secure.recv(1)
    said(tls, "peer did not return a certificate")


def test_another_authority_is_refused_on_both_sides(
    tls: Any, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_certificates(tmp_path / "other")
    line = refusal(at(tls), tmp_path / "other")
    assert "its certificate is of another authority than" in line
    assert "`rlvf certs NAME`" in line
    said(tls, "unknown ca")
    foreign = issue(tmp_path / "other", "jetson")  # trusts the scheduler, but is not of its authority
    authority = (first / "certs" / "authority.pem").read_text()
    home = with_files(tmp_path / "spy", authority, foreign.certificate, foreign.key)
    monkeypatch.setattr("infra.cluster.reach.check_certificates", lambda _: None)  # which sees that they do not fit
    monkeypatch.setattr("infra.security.tls.check_certificates", lambda _: None)
    assert "refuses this machine's certificate, which its authority has not signed" in refusal(at(tls), home)
    said(tls, "unable to get local issuer certificate")


def test_an_expired_certificate_is_refused_on_both_sides(
    tls: Any, first: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = issue(first, "jetson", days=-1)
    home = with_files(tmp_path / "late", over.authority, over.certificate, over.key)
    with pytest.raises(SecurityError, match="this machine's certificate expired"):
        reach(at(tls), home)
    monkeypatch.setattr("infra.cluster.reach.check_certificates", lambda _: None)  # as if the clock here were behind
    monkeypatch.setattr("infra.security.tls.check_certificates", lambda _: None)
    assert "refuses this machine's certificate as expired" in refusal(at(tls), home)
    said(tls, "certificate has expired")


@pytest.mark.slow
def test_plain_tcp_against_tls_is_refused_on_both_sides(tls: Any, tmp_path: Path) -> None:
    assert "refuses plain connections; write tls://" in refusal(at(tls, scheme="tcp"), tmp_path)
    with socket.create_connection(("127.0.0.1", at(tls).port), 5) as raw:
        raw.sendall(b"\x00" * 64)
        raw.settimeout(5)
        with suppress(ConnectionResetError):
            assert raw.recv(1) in (b"", b"\x15")  # a TLS alert at most
    said(tls, "wrong version number")


def test_tls_against_plain_tcp_is_refused(plain: Any, first: Path) -> None:
    line = refusal(at(plain, scheme="tls"), first)
    assert "does not speak TLS; write tcp://" in line or "hung up at once" in line


def test_whoever_is_not_there_is_told_apart(first: Path, tmp_path: Path) -> None:
    said = refusal(SchedulerAddress("tls", "127.0.0.1", 9), first)
    assert "nothing listens there: start one here with `rlvf up`; on another machine: `rlvf down`, then" in said
    assert "no machine is known as" in refusal(SchedulerAddress("tcp", "no-such-host.invalid", 9), tmp_path)


def test_a_scheduler_that_stands_still_gives_no_answer(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as still:  # the system takes the connection
        address = SchedulerAddress("tcp", "127.0.0.1", still.getsockname()[1])
        assert "no answer in" in refusal(address, tmp_path)


def test_a_listener_that_hangs_up_is_no_scheduler(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = SchedulerAddress("tcp", "127.0.0.1", silent.getsockname()[1])

        def hang_up() -> None:
            for _ in range(2):
                silent.accept()[0].close()

        thread = threading.Thread(target=hang_up, daemon=True)
        thread.start()
        assert "hung up at once; is it a Dask scheduler?" in refusal(address, tmp_path)
        thread.join(90)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("tls://h:1", "tls://h:1"),
        ("10.0.0.1", "tcp://10.0.0.1:8786"),
        ("[fe80::1]:99", "tcp://[fe80::1]:99"),
        ("tcp://h", "tcp://h:8786"),
    ],
)
def test_addresses_are_read_as_people_write_them(written: str, meant: str, tmp_path: Path) -> None:
    assert str(parse_address(written, tmp_path)) == meant


def test_an_address_without_a_scheme_is_tls_where_there_are_certificates(first: Path) -> None:
    assert str(parse_address("h", first)) == "tls://h:8786"
    with pytest.raises(ValueError, match="no address of a scheduler; write it like tls://"):
        parse_address("http://h:1", first)


@pytest.fixture(scope="module")
def member(first: Path, tls: Any) -> Iterator[None]:
    """One worker over TLS."""
    from distributed import Worker
    from distributed.utils import sync

    with Client(tls.address, security=dask_security(first), set_as_default=False) as client:

        async def start() -> Worker:
            return await Worker(
                tls.address, security=dask_security(first), host="127.0.0.1", resources={"CPU": 1}, name="over-tls"
            )

        worker = sync(client.loop, start)
        yield
        sync(client.loop, worker.close)


@pytest.mark.usefixtures("member")
def test_a_cluster_is_joined_over_tls(tls: Any, first: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVF_HOME", str(first))
    with cluster(ClusterConfig(scheduler=tls.address)) as client:
        assert [offer.name for offer in offers(client)] == ["over-tls"]
        assert offers(client)[0].address.startswith("tls://")
        assert client.submit(sum, [1, 2], resources={"CPU": 1}).result(10) == 3


def test_the_environment_names_the_scheduler_where_the_configuration_does_not(
    plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLVF_SCHEDULER", plain.address)
    with cluster(ClusterConfig()) as client:
        assert client.scheduler.address == plain.address
    monkeypatch.setenv("RLVF_SCHEDULER", "tcp://no-such-host.invalid:1")
    with (
        pytest.raises(ClusterError, match=r"RLVF_SCHEDULER = .* does not answer .no machine.*or unset it to use this"),
        cluster(ClusterConfig()),
    ):
        pass


def test_a_cluster_that_wants_certificates_says_how_to_get_them(tls: Any, home_folder: Path) -> None:
    with (
        pytest.raises(ClusterError, match=f"cluster.scheduler = .*no certificates in {home_folder}.*`rlvf certs NAME`"),
        cluster(ClusterConfig(scheduler=tls.address)),
    ):
        pass
