"""A worker from another checkout has the same version number: it is told by its source."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client, Security

from infra.cluster.cluster import local_cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import METRIC, PlacementConfig, PlacementError, check_sources, offers
from infra.cluster.source import SOURCE, UNKNOWN, digest_of, source_digest
from infra.dispatch.dispatch import Dispatch
from tests.lone_worker import lone_worker
from tests.processes import started, until

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another checkout, whose verifier of arithmetic finds right what is wrong."""
    folder = tmp_path_factory.mktemp("copy")
    for name in ("flows", "infra", "rl", "tasks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.pyc"))
    assert digest_of(folder) == source_digest()
    judge = folder / "rl" / "verifiers" / "built_in" / "arithmetic.py"
    judge.write_bytes(judge.read_bytes().replace(b"==", b"!="))
    return folder


def test_the_digest_is_of_names_and_bytes_of_our_files_alone(copy: Path) -> None:
    other = digest_of(copy)
    assert other != source_digest()
    assert len(other) == 12
    (copy / "rl" / "__pycache__").mkdir(exist_ok=True)
    (copy / "rl" / "__pycache__" / "sampler.cpython-311.pyc").write_bytes(b"1")
    (copy / "mine.py").write_text("")
    assert digest_of(copy) == other
    (copy / "rl" / "sampling" / "sampler.py").rename(copy / "rl" / "sampling" / "sampled.py")
    assert digest_of(copy) != other
    (copy / "rl" / "sampling" / "sampled.py").rename(copy / "rl" / "sampling" / "sampler.py")
    (copy / "rl" / ".#sampler.py").symlink_to("me@host.123:456")  # Emacs, of a buffer that is not saved
    (copy / "rl" / "folder.py").mkdir()
    assert digest_of(copy) == other


@pytest.fixture
def told(request: pytest.FixtureRequest) -> Iterator[Client]:
    """A cluster whose only worker says this of itself."""
    metrics = {METRIC: lambda _: {"versions": request.param}}
    with (
        lone_worker("far", {"GENERATOR": 1}, metrics=metrics) as scheduler,
        Client(scheduler, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("told", "source"),
    [({"rlvf": "0.1.0", SOURCE: "abcdef012345"}, "abcdef012345"), ({"rlvf": "0.1.0"}, UNKNOWN)],
    indirect=["told"],
)
def test_a_worker_of_another_source_is_refused_and_gets_nothing(told: Client, source: str) -> None:
    with pytest.raises(PlacementError, match=rf"\({source_digest()}\): [\w-]+ \({source}\); install the same commit"):
        check_sources(told)
    said: list[str] = []
    with (
        Dispatch(told, PlacementConfig(), said.append, patience=0.3) as dispatch,
        pytest.raises(PlacementError, match=r"no worker offers GENERATOR.*because they run another source of rlvf: "),
    ):
        list(dispatch.lease("generate", sum, [([1, 2],)]))
    (line,) = [line for line in said if "gets nothing" in line]  # said once, however often one looks
    assert f"another source of rlvf ({source}, here {source_digest()})" in line


@pytest.mark.parametrize("told", [{"rlvf": "0.1.0", SOURCE: source_digest()}], indirect=True)
def test_one_of_the_same_source_works(told: Client) -> None:
    check_sources(told)
    with Dispatch(told, PlacementConfig()) as dispatch:
        assert dict(dispatch.lease("generate", sum, [([1, 2],)])) == {0: 3}


@pytest.mark.slow
def test_a_worker_that_this_process_started_again_after_an_edit_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    plain = Security(require_encryption=False)  # type: ignore[no-untyped-call]
    with local_cluster(ClusterConfig(generators=1, threads=1, device="cpu"), plain, log_dir=tmp_path) as client:
        monkeypatch.setattr("infra.cluster.exclusions.source_digest", lambda: "before")
        with Dispatch(client, PlacementConfig(), said.append) as dispatch:
            assert dict(dispatch.lease("generate", sum, [([1, 2],), ([3, 4],)])) == {0: 3, 1: 7}
    names = [line.partition(" ")[0] for line in said if f"runs rlvf as its files are now ({source_digest()})" in line]
    assert "generator-0" in names
    assert len(names) == len(set(names)) == len(said)


@pytest.mark.slow
def test_one_of_dasks_own_command_is_asked(copy: Path, tmp_path: Path) -> None:
    plain = Security(require_encryption=False)  # type: ignore[no-untyped-call]  # so that Dask's own commands join it
    config = ClusterConfig(generators=1, threads=1, device="cpu")
    with local_cluster(config, plain, log_dir=tmp_path) as client:
        check_sources(client)
        words = "--name far --nthreads 1 --memory-limit 0 --no-nanny --no-dashboard --resources VERIFIER=1".split()
        dask_worker = (sys.executable, "-m", "distributed.cli.dask_worker")  # which finds what lies where it stands
        with started(*dask_worker, str(client.scheduler_info()["address"]), *words, cwd=copy):
            until(lambda: any(offer.name == "far" for offer in offers(client)))
            with pytest.raises(PlacementError, match=rf": far \({digest_of(copy)}\); install"):
                check_sources(client)
