"""The trainer's side of published weights: every version as the difference from the one before, and longer ones."""

import math
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from infra import disk
from infra.storage import place, store
from infra.storage.fence import Fence
from infra.storage.manifest import NotThere, StoreError, Torn
from infra.storage.retry_policy import RetryPolicy
from infra.weights.chain import cheapest_chain, needed, read_edges
from infra.weights.difference import (
    DIFFERENCE,
    Weights,
    merge_differences,
    weights_digest,
    write_difference,
)
from infra.weights.mirror import Mirror
from infra.weights.pin import Pins
from infra.weights.version import PolicyVersion, Published, SyncConfig, VersionId, VersionManifest
from infra.weights.whole import PublicModel, describe, files_digest, write_whole


@dataclass(frozen=True)
class _Kept:
    """A difference that was stored, and a copy of it here to merge with the next."""

    base: VersionId
    step: int
    path: Path
    bytes: int

    @property
    def length(self) -> int:
        return self.step - self.base.step


class Publisher:
    """Publishes the versions of a run, one after another. After each, a thread of its own shortens the chain to it for
    generators that are behind, and removes what no generator needs."""

    def __init__(
        self,
        run_uri: str,
        config: SyncConfig,
        *,
        window: int,
        files: Path,
        sampling: Mapping[str, JsonValue] | None = None,
        public: PublicModel | None = None,
        fence: Fence | None = None,
        kept: Callable[[int], Collection[int]] = lambda _: (),
    ) -> None:
        """`window`: versions that a generator may be behind; `files`: a folder with what lies beside whole weights,
        the model's configuration and its tokenizer; `public`: the model that is version 0, which is not stored then;
        `fence`: of the run, None where no other process may take it over; `kept`: further versions that must stay, when
        this one is the newest."""
        self._run_uri = run_uri
        self._uri = place.join(run_uri, "weights")
        self._config = config
        self._patience = RetryPolicy(config.patience)
        self._window = window
        self._files, self._files_digest = files, files_digest(files)
        self._files_bytes = sum(path.stat().st_size for path in files.rglob("*") if path.is_file())
        self._sampling = dict(sampling or {})
        self._public = public
        self._fence = fence
        self._kept = kept
        self._check = store.check_of(fence)
        self._pins = Pins(run_uri)
        self._weights: Weights = {}  # of the version that was published last
        self._version: VersionId | None = None
        self._stack: list[_Kept] = []  # the chain to it from the last whole version, its differences ever shorter
        self._spool = Path(tempfile.mkdtemp(dir=disk.own_folder()))
        self._warnings: list[str] = []
        self._thread = ThreadPoolExecutor(1, "publisher")

    @property
    def nbytes(self) -> int:
        """Bytes of the weights that it holds."""
        return sum(each.nbytes for each in self._weights.values())

    @property
    def has_published(self) -> bool:
        """Whether it has published a version, and holds it."""
        return self._version is not None

    def publish(self, step: int, weights: Weights) -> Published:
        """Publish `weights`, which nobody changes any more, as version `step`. Publishing the same again changes
        nothing; after a failure the next version starts from the last one that was published.

        Raises what the storage raises for longer than the patience, and LockLostError.
        """
        publishing: Future[Published] = self._thread.submit(self._publish, step, weights)
        published = publishing.result()
        self._thread.submit(self._extend)
        return published

    def mend(self, damaged: Collection[str]) -> None:
        """Store the last published version once more, whole, where a generator found the folders `damaged`; those of
        them that are damaged here too are removed. Raises as `publish` does."""
        self._thread.submit(self._mend, frozenset(damaged)).result()

    def finish(self) -> None:
        """Wait for the background."""
        self._thread.submit(lambda: None).result()

    def close(self) -> None:
        """Wait for the background, and remove the differences that were kept to merge."""
        self._thread.shutdown()
        shutil.rmtree(self._spool, ignore_errors=True)

    def _publish(self, step: int, weights: Weights) -> Published:
        began = time.perf_counter()
        version = self._policy_version(step, weights_digest(weights))
        if self._version is None:
            self._open(version.id, weights)
        if self._version == version.id:
            return Published(version, warnings=self._take_warnings())
        base = self._version
        with store.scratch(self._uri) as folder:
            changed = 1.0
            public = self._public.name if self._public is not None and step == 0 else None
            if base is None:
                self._write_whole(folder, weights if public is None else None)
            else:
                cells, differ = write_difference(folder / DIFFERENCE, weights, self._weights)
                changed = differ / max(1, cells)
                kept = self._keep(base, step, folder / DIFFERENCE)
            manifest = describe(weights, version, base, changed, self._sampling, public)
            encoded = time.perf_counter()
            size = self._store(f"v{step}", folder, manifest)
        if base is not None:
            self._stack.append(kept)
        self._weights, self._version = weights, version.id
        return Published(
            version,
            bytes=size,
            full=manifest.bytes,
            changed=changed,
            encode_seconds=encoded - began,
            upload_seconds=time.perf_counter() - encoded,
            seconds=time.perf_counter() - began,
            warnings=self._take_warnings(),
        )

    def _policy_version(self, step: int, digest: str) -> PolicyVersion:
        return PolicyVersion(step, place.join(self._uri, f"v{step}"), digest, self._files_digest)

    def _open(self, version: VersionId, weights: Weights) -> None:
        """Go on from what an earlier session has published; versions after the run's are removed."""
        edges = self._patience(read_edges, self._uri)
        for edge in edges:
            if edge.makes.step >= version.step and edge.makes != version:
                self._patience(self._check)
                self._patience(place.remove, edge.uri)
        edges = [edge for edge in edges if edge.makes.step < version.step or edge.makes == version]
        newest = max(edges, key=lambda edge: edge.makes.step, default=None)
        if newest is None or (way := cheapest_chain(edges, newest.makes)) is None:
            return
        try:
            if newest.makes != version:
                mirror = Mirror(self._uri, patience=self._config.patience, public=self._public)
                with mirror.at(PolicyVersion(newest.makes.step, newest.uri, newest.makes.digest)) as found:
                    weights = found
            for edge in way:
                if edge.base is None:
                    self._patience(store.check_whole, edge.uri)
                else:
                    with self._patience(store.read_folder, edge.uri) as folder:
                        self._stack.append(self._keep(edge.base, edge.makes.step, folder.path / DIFFERENCE))
        except StoreError as error:
            self._forget_chain()
            self._warnings.append(f"the weights that were published before cannot be used: {error}")
            return
        self._weights, self._version = weights, newest.makes

    def _mend(self, damaged: frozenset[str]) -> None:
        assert self._version is not None
        own = place.join(self._uri, f"v{self._version.step}")
        # readers look at a version's own place first
        self._anchor_whole(self._version, "" if own in damaged else "-whole")
        for uri in damaged - {own}:
            try:
                with self._patience(store.read_folder, uri):
                    pass
            except Torn:
                self._patience(self._check)
                self._patience(place.remove, uri)
            except NotThere:
                continue

    def _extend(self) -> None:
        """What fails here costs generators that are behind time, and the run nothing; the next version tries again."""
        try:
            self._shorten()
        except Exception as error:  # noqa: BLE001
            self._warnings.append(f"for those who are behind nothing shorter was stored: {error}")
        try:
            self._prune()
        except Exception as error:  # noqa: BLE001
            self._warnings.append(f"versions that nobody needs were not removed: {error}")

    def _shorten(self) -> None:
        """Merge differences as one counts in binary: two of the same length become one of twice that, and the longest
        all start from the last whole version; or store this one whole, where that is less to read."""
        assert self._version is not None
        if self._is_long():
            self._anchor_whole(self._version)
        while len(self._stack) > 1:
            older, newer = self._stack[-2:]
            # twice as long at least, so that there are few also where steps were left out
            if older.length >= 2 * newer.length and newer.length < self._config.anchor_every:
                break
            self._stack[-2:] = [self._merge(older, newer)]

    def _is_long(self) -> bool:
        """Whether the chain takes more bytes than this version whole, so that those who come anew read two at most, and
        whole ones at most double what is stored; or more differences than there can be where merging works."""
        whole = sum(tensor.nbytes for tensor in self._weights.values()) + self._files_bytes
        most = 2 + int(math.log2(self._config.anchor_every))  # an anchor, one for each bit, and the newest
        return sum(kept.bytes for kept in self._stack) > whole or len(self._stack) > most

    def _forget_chain(self) -> None:
        while self._stack:
            self._stack.pop().path.unlink(missing_ok=True)

    def _merge(self, older: _Kept, newer: _Kept) -> _Kept:
        version = self._version
        assert version is not None
        with store.scratch(self._uri) as folder:
            cells, differ = merge_differences(folder / DIFFERENCE, self._weights, newer.path, older.path)
            made = self._policy_version(version.step, version.digest)
            manifest = describe(self._weights, made, older.base, differ / max(1, cells), self._sampling)
            kept = self._keep(older.base, version.step, folder / DIFFERENCE)
            self._store(f"v{version.step}-from-v{older.base.step}", folder, manifest)
        for each in (older, newer):
            each.path.unlink(missing_ok=True)
        return kept

    def _anchor_whole(self, version: VersionId, ending: str = "-whole") -> None:
        with store.scratch(self._uri) as folder:
            self._write_whole(folder, self._weights)
            made = self._policy_version(version.step, version.digest)
            manifest = describe(self._weights, made, None, 1.0, self._sampling)
            self._store(f"v{version.step}{ending}", folder, manifest)
        self._forget_chain()

    def _prune(self) -> None:
        assert self._version is not None
        edges = self._patience(read_edges, self._uri)
        pinned = self._patience(self._pins.steps) | set(self._kept(self._version.step))
        stays = needed(edges, self._version.step, self._window, pinned)
        for edge in edges:
            if edge.uri not in stays:
                self._patience(self._check)
                place.remove(edge.uri)

    def _write_whole(self, folder: Path, weights: Weights | None) -> None:
        names = (path.relative_to(self._files) for path in self._files.rglob("*") if path.is_file())
        disk.copy_files(self._files, folder, names)
        if weights is not None:
            write_whole(folder, weights)

    def _store(self, name: str, folder: Path, manifest: VersionManifest) -> int:
        """Store the folder, whose files are gone then; returns the bytes."""
        uri, meta = place.join(self._uri, name), manifest.model_dump(mode="json")
        return store.write_patiently(uri, folder, meta, self._config.patience, self._fence).size

    def _take_warnings(self) -> tuple[str, ...]:
        taken, self._warnings = tuple(self._warnings), []
        return taken

    def _keep(self, base: VersionId, step: int, path: Path) -> _Kept:
        kept = _Kept(base, step, self._spool / f"{base.step}-{step}", path.stat().st_size)
        shutil.copyfile(path, kept.path)
        return kept
