"""A generator's copy of the published weights, updated from version to version by differences."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from infra import disk
from infra.cluster.timeline import Fetched
from infra.storage import place, store
from infra.storage.fence import Fence
from infra.storage.manifest import NotThere, Torn
from infra.storage.retry_policy import RetryPolicy
from infra.storage.store import Folder
from infra.weights.chain import Edge, cheapest_chain, read_edge, read_edges
from infra.weights.difference import DIFFERENCE, DifferenceError, Weights, apply_difference, weights_digest
from infra.weights.version import Gone, PolicyVersion, StaleBase, VersionId
from infra.weights.whole import PublicModel, is_weights, read_whole

UNSEEN_SECONDS = 30.0  # how long a store elsewhere may hide what was written, and
UNSEEN_HERE_SECONDS = 2.0  # a file system may
TORN_SECONDS = 20.0  # for so long a damaged download is retried
GROWTH = 2  # times its size is what a version may have at most, whatever a manifest says
KEPT_WHOLE = 3  # folders in a cache
ATTEMPTS = 4  # to find a chain of intact folders
POLL_SECONDS = 0.25


@dataclass(frozen=True)
class Prefetched:
    """A version that a prefetch has fetched."""

    version: PolicyVersion
    session: Fence  # of its trainer: the next one may have gone back, and make other weights of the same steps


class Mirror:
    """The weights of one version of a run in memory, on the CPU, bit for bit as they were published.

    Safe to share by threads. Whatever fails leaves either a version or nothing, never a mixture.
    """

    def __init__(
        self, weights: str, *, patience: float, cache: Path | None = None, public: PublicModel | None = None
    ) -> None:
        """`weights`: the URI under which the run's versions lie; `patience`: seconds that the storage may be away;
        `cache`: where a whole version from elsewhere is kept on this machine, for other processes too; `public`: the
        model that the run may start from without storing it."""
        self.uri = weights
        self._patience = patience
        self._cache = cache
        self._public = public
        self._lock = threading.RLock()
        self._weights: dict[str, Tensor] = {}
        self._version: VersionId | None = None
        self._root: Folder | None = None
        self._beside: tempfile.TemporaryDirectory[str] | None = None  # where `root` is
        self._files = ""  # digest of the files of the version, beside its weights
        self._fetched = Fetched()
        self._counting = threading.Lock()  # of what is fetched, while that goes on
        self._ahead: threading.Thread | None = None
        self.prefetched: Prefetched | None = None  # last; see `now` whether it is still here

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return sum(each.nbytes for each in list(self._weights.values()))  # others may add to them meanwhile

    @property
    def root(self) -> Path:
        """A folder of this process with the files beside the weights: the model's configuration and its tokenizer."""
        return self.root_folder.path

    @property
    def root_folder(self) -> Folder:
        """As `root`, with what its manifest says."""
        assert self._root is not None, "no version was fetched yet"
        return self._root

    @contextmanager
    def at(self, version: PolicyVersion, check: Callable[[], None] = lambda: None) -> Iterator[Weights]:
        """The weights of `version`, which stay so inside, as what lies beside them in `root` does.

        `check` is called while the storage is away, and may raise. Raises NotThere, Gone and Torn, and what the
        storage raises for longer than the patience.
        """
        with self._locked(check):
            lost = self._root is not None and not self._root.path.is_dir()  # as by a sweep of temporary files
            if version.files != self._files or lost:
                self._forget()
                self._files = version.files
            self._fetch(version, check)
            yield self._weights

    def step(self, check: Callable[[], None] = lambda: None) -> int | None:
        """Of the version that is here, once a prefetch under way has ended; None where there is none. `check` is
        called meanwhile, and may raise."""
        with self._locked(check):
            return None if self._version is None else self._version.step

    @contextmanager
    def now(self, version: PolicyVersion) -> Iterator[Weights | None]:
        """The weights of `version` as by `at` where they are here and free at this moment, else None: nothing is waited
        for."""
        if not self._lock.acquire(blocking=False):
            yield None
            return
        try:
            yield self._weights if self._version == version.id else None
        finally:
            self._lock.release()

    def prefetch(self, version: PolicyVersion, session: Fence) -> None:
        """Begin to fetch `version` in the background, where a version is here that differences start from, and none is
        being fetched so: it is `prefetched` then. What fails is raised by the next `at`."""
        if self._version is None or (self._ahead is not None and self._ahead.is_alive()):
            return

        def fetch() -> None:
            try:
                with self.at(version):
                    self.prefetched = Prefetched(version, session)
            except Exception:  # noqa: BLE001, S110 - `at` meets it again
                pass

        self._ahead = threading.Thread(target=fetch, name="weights", daemon=True)
        self._ahead.start()

    def take_fetched(self) -> Fetched:
        """What was fetched since the last call, in the background too."""
        with self._counting:
            taken, self._fetched = self._fetched, Fetched()
        return taken

    @contextmanager
    def _locked(self, check: Callable[[], None]) -> Iterator[None]:
        while not self._lock.acquire(timeout=POLL_SECONDS):  # a prefetch has it
            check()
        try:
            yield
        finally:
            self._lock.release()

    def _fetch(self, version: PolicyVersion, check: Callable[[], None]) -> None:
        damaged: dict[str, Torn] = {}  # folders, by URI
        for attempt in range(ATTEMPTS):
            if self._version == version.id:
                return
            try:
                for edge in self._way(version, damaged, check):
                    try:
                        self._take(edge, check)
                    except Torn as error:
                        damaged[edge.uri] = error
                        break
            except NotThere:  # removed meanwhile
                if attempt + 1 == ATTEMPTS:
                    raise
        if self._version != version.id:
            raise _last(damaged)

    def _way(self, version: PolicyVersion, damaged: dict[str, Torn], check: Callable[[], None]) -> list[Edge]:
        """The cheapest chain from the version that is here."""

        def find() -> list[Edge]:
            try:
                direct = intact(read_edge, version.uri)
            except NotThere:
                edges = read_edges(self.uri)
            except Torn as error:
                damaged[version.uri] = error
                edges = read_edges(self.uri)
            else:
                if direct.makes != version.id:
                    raise Torn(f"{version.uri} holds other weights than were published as {version}")
                if direct.base in (self._version, None) and direct.uri not in damaged:
                    return [direct]
                edges = read_edges(self.uri)
            way = cheapest_chain((edge for edge in edges if edge.uri not in damaged), version.id, self._version)
            if way is not None:
                return way
            if damaged:
                raise _last(damaged)
            newest = max((edge.makes.step for edge in edges), default=-1)
            if newest > version.step:
                raise Gone(f"{version.uri} was removed: the newest version is v{newest}")
            raise NotThere(f"there is nothing whole that makes {version.uri}, yet")

        unseen = UNSEEN_HERE_SECONDS if place.local_path(self.uri) is not None else UNSEEN_SECONDS
        seen = RetryPolicy(unseen, of=(NotThere,), check=check)
        intact = self._downloads(check)
        return RetryPolicy(self._patience, check=check)(seen, find)

    def _take(self, edge: Edge, check: Callable[[], None]) -> None:
        """Fetch and apply one folder."""
        began = time.perf_counter()
        folder = RetryPolicy(self._patience, check=check)(self._folder, edge, check)
        applied = time.perf_counter()
        try:
            with folder:
                if edge.base is None:
                    self._replace(edge, folder)
                else:
                    self._apply(edge, folder.path / DIFFERENCE)
        except BaseException:
            self._forget()
            raise
        self._version = edge.makes
        with self._counting:
            self._fetched.add(Fetched(edge.bytes, applied - began, time.perf_counter() - applied))

    def _replace(self, edge: Edge, folder: Folder) -> None:
        manifest = edge.manifest
        self._weights.clear()  # two models need not share the memory
        if manifest.public is None:
            self._weights = read_whole(folder.path)
        elif self._public is None or self._public.name != manifest.public:
            raise Torn(f"{edge.uri} starts from {manifest.public}, which is not the model that is asked for")
        else:
            self._weights = dict(self._public.load(manifest.dtype))
        if weights_digest(self._weights) != manifest.digest:
            remedy = "" if manifest.public is None else f": {manifest.public} is another here; take --sync.base stored"
            raise Torn(f"{edge.uri} holds other weights than its manifest says{remedy}")
        self._keep_beside(edge, folder)

    def _keep_beside(self, edge: Edge, folder: Folder) -> None:
        """Copy what lies beside the weights: the run may remove the folder while a model is loaded with it."""
        files = {name: entry for name, entry in folder.manifest.files.items() if not is_weights(name)}
        beside = replace(folder, manifest=replace(folder.manifest, files=files))
        made = tempfile.TemporaryDirectory(dir=disk.own_folder(), ignore_cleanup_errors=True)
        store.copy_folder(beside, Path(made.name), edge.uri)
        if self._beside is not None:
            self._beside.cleanup()
        self._beside, self._root = made, replace(beside, path=Path(made.name), temporary=False)

    def _apply(self, edge: Edge, path: Path) -> None:
        assert edge.base == self._version
        most = GROWTH * sum(tensor.nbytes for tensor in self._weights.values())
        try:
            apply_difference(path, self._weights, edge.manifest.digest, most)
        except DifferenceError as error:
            raise StaleBase(f"{edge.uri}: {error}") from None

    def _folder(self, edge: Edge, check: Callable[[], None]) -> Folder:
        """The edge's files on this machine, verified."""
        if place.local_path(edge.uri) is not None:
            return store.read_folder(edge.uri)
        into = None if edge.base is not None or self._cache is None else self._cache / edge.manifest.digest[:32]
        folder = self._downloads(check)(store.read_folder, edge.uri, into)
        if into is not None:
            disk.keep_newest(into, KEPT_WHOLE)
        return folder

    def _downloads(self, check: Callable[[], None]) -> RetryPolicy:
        """Retries of a download that arrives damaged: the next one may be intact."""
        return RetryPolicy(TORN_SECONDS if place.local_path(self.uri) is None else 0, of=(Torn,), check=check)

    def _forget(self) -> None:
        self._weights.clear()
        self._version = None


def _last(damaged: Mapping[str, Torn]) -> Torn:
    """The error of the folder that was tried last; its `damaged` names all."""
    error = list(damaged.values())[-1]
    error.damaged = tuple(damaged)
    return error
