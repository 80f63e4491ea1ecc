"""A reference that is no version of its run but another model: a copy of it is stored with the run, which a resume
finds whatever has become of the model."""

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra import disk
from infra.cluster.resident import drop, resident
from infra.errors import one_line
from infra.security.secrets import masked
from infra.storage import place, store
from infra.storage.fence import Fence
from infra.storage.manifest import StoreError, Torn
from infra.storage.retry_policy import RetryPolicy
from infra.storage.typed import read_typed
from infra.weights.version import PolicyVersion, published_version
from rl.config import TINY, PolicyConfig
from tasks.calls.start import weights_of

if TYPE_CHECKING:
    from torch import dtype

    from rl.model.policy import Policy

FOLDER, DIGEST = "reference", "reference.json"  # of a run
CHECKED = "checked reference"


class ReferenceLost(StoreError):  # noqa: N818
    """The reference cannot be read, and no published version mends that."""

    remedy = "restore it, or start a new run from the newest version"


class OtherTokensError(ValueError):
    """A reference that means other tokens by the same numbers."""


@dataclass(frozen=True)
class RunVersion:
    """A version that a run has published."""

    uri: str
    step: int
    policy: PolicyConfig
    public: str | None  # the model that it started from, where every machine loads that by itself


@dataclass(frozen=True)
class OtherModel:
    """The reference of a run. Its methods are called on the worker that trains, which can load what a run starts
    from."""

    name: str  # as a person calls it
    source: str | RunVersion | None  # str: as `weights_of` takes it; None: it is not there any more
    run_uri: str
    patience: float  # seconds that the storage may be away
    fence: Fence

    def check(self, policy: str) -> None:
        """Load it before the run exists; `stored` takes what was loaded. ``policy``: the model that the run starts
        from.

        Raises:
            OtherTokensError: it does not have that one's tokens.
            UnknownModelError: it cannot be loaded.
        """
        from rl.model.skeleton import skeleton
        from rl.model.tiny import build_tokenizer
        from rl.model.tokenizer import read_tokenizer

        drop(CHECKED)
        found, _ = resident(CHECKED, self, self._load)
        with weights_of(policy) as path:
            tokenizer = build_tokenizer() if policy == TINY else read_tokenizer(path)
            rows = len(skeleton(path).get_input_embeddings().weight)  # type: ignore[arg-type]
        there, named = found.tokenizer.get_vocab(), self._named
        for token, at in sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]):
            if there.get(token) != at:
                has = f"has it as {there[token]}" if token in there else "does not have it"
                raise OtherTokensError(
                    f"{named}: has other tokens than policy.model {policy!r} and cannot score what that samples: token "
                    f"{at} is {token!r} there, and the reference {has}; take a model of the same family"
                )
        if (its := len(found.model.get_input_embeddings().weight)) < rows:  # type: ignore[arg-type]
            raise OtherTokensError(
                f"{named}: has {its} rows of tokens, and policy.model {policy!r} {rows}, all of which may be sampled"
            )

    def stored(self) -> tuple[PolicyVersion, str]:
        """The run's copy, stored now where there is none yet or it is missing or damaged; and a line where that was so.
        Raises ReferenceLost where nothing can take its place."""
        uri, record = place.join(self.run_uri, FOLDER, "v0"), place.join(self.run_uri, DIGEST)
        patient = RetryPolicy(self.patience)
        kept = patient(read_typed, record, str, "restore it, or start a new run")
        try:
            patient(store.check_whole, uri)
            version = published_version(uri)
            if kept not in (None, version.digest):
                raise Torn(f"{uri} is another model than was stored there")
            damaged = ""
        except StoreError as error:
            damaged = "" if kept is None else one_line(error)
            version = self._store(uri, kept, damaged)
        if kept is None:
            patient(self.fence.check)
            patient(place.write_text, record, json.dumps(version.digest) + "\n")
        return version, damaged and f"{damaged}; the reference was stored anew from {masked(self.name)}"

    @property
    def _named(self) -> str:
        return f"algorithm.kl.reference {masked(self.name)!r}"

    def _store(self, uri: str, kept: str | None, damaged: str) -> PolicyVersion:
        from infra.weights.difference import weights_digest
        from infra.weights.whole import describe, files_digest, read_whole
        from rl.model.policy import UnknownModelError, save_base

        lost = f"the reference of the run is missing or damaged: {damaged}; nothing can take its place: "
        try:
            policy, dtype = resident(CHECKED, self, self._load)
        except (UnknownModelError, StoreError) as error:
            if kept is None:
                raise
            raise ReferenceLost(f"{lost}{one_line(error)}") from error
        finally:
            drop(CHECKED)
        with store.scratch(self.run_uri) as folder:
            save_base(policy, folder, dtype)
            weights = read_whole(folder)
            version = PolicyVersion(0, uri, weights_digest(weights), files_digest(folder))
            if kept not in (None, version.digest):
                raise ReferenceLost(f"{lost}{masked(self.name)} is another model by now")
            meta = describe(weights, version, None, 1.0, {}).model_dump(mode="json")
            store.write_patiently(uri, folder, meta, self.patience, self.fence)
        return version

    def _load(self) -> "tuple[Policy, dtype]":
        """It, and the type of its own weights. Raises UnknownModelError."""
        from rl.loading.policy import load_policy
        from rl.model.policy import UnknownModelError, own_dtype
        from rl.model.skeleton import settings_of
        from rl.model.unloadable import reason

        with self._folder() as path:
            try:
                return load_policy(path, PolicyConfig(device="cpu"), whole=True), own_dtype(settings_of(path))
            except Exception as error:
                why = reason(error).removeprefix(f"policy.model {path!r}").removeprefix(":").strip()
                raise UnknownModelError(f"{self._named}: {why}") from error

    @contextmanager
    def _folder(self) -> Iterator[str]:
        """What transformers loads. Raises UnknownModelError and StoreError."""
        from rl.model.policy import UnknownModelError
        from tasks.exported import export

        if self.source is None:
            raise UnknownModelError(f"{self._named}: is not there any more")
        if isinstance(self.source, str):
            with weights_of(self.source) as path:
                yield path
            return
        of = self.source
        with tempfile.TemporaryDirectory(dir=disk.own_folder()) as made:
            out = Path(made, "model")
            yield str(export(of.uri, of.policy, of.public, out, merge=True, dtype="auto", step=of.step)[0])
