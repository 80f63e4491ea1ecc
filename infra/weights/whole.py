"""Whole weights, in Hugging Face layout: what a chain of differences starts from."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3
from pydantic import JsonValue
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from infra.storage import store
from infra.storage.manifest import Torn
from infra.weights.difference import Weights, weights_digest
from infra.weights.version import ADAPTERS, PolicyVersion, VersionId, VersionManifest

WHOLE = "model.safetensors"


@dataclass(frozen=True)
class PublicModel:
    """A model that every machine loads from elsewhere than the run's storage."""

    name: str
    load: Callable[[str], Weights]  # its weights, in the type of this name


def describe(
    weights: Weights,
    version: PolicyVersion,
    base: VersionId | None,
    changed: float,
    sampling: dict[str, JsonValue],
    public: str | None = None,
) -> VersionManifest:
    """The manifest of weights; the parameters are its fields."""
    return VersionManifest(
        step=version.step,
        digest=version.digest,
        base=base,
        dtype=_dtype(weights),
        bytes=sum(tensor.nbytes for tensor in weights.values()),
        changed=changed,
        sampling=sampling,
        public=public,
        files=version.files,
    )


def keep_whole(uri: str, folder: Path) -> PolicyVersion:
    """Store a local folder in Hugging Face layout as version 0 at ``uri``; ``folder`` is gone afterwards."""
    weights = load_file(folder / WHOLE)
    version = PolicyVersion(0, uri, weights_digest(weights), files_digest(folder))
    manifest = describe(weights, version, None, 1.0, {})
    store.write_folder(uri, folder, meta=manifest.model_dump(mode="json"), move=True)
    return version


def files_digest(folder: Path) -> str:
    """blake3 over the names and contents of what lies beside the weights: configuration, tokenizer, chat template."""
    digest = blake3()
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and not is_weights(path.name)):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)} ".encode())
        digest.update(content)
    return digest.hexdigest()


def is_weights(name: str) -> bool:
    """Whether a file of a version holds its weights."""
    return name in (WHOLE, ADAPTERS[1])


def read_whole(folder: Path) -> dict[str, Tensor]:
    """The weights of a folder in Hugging Face layout; raises Torn."""
    try:
        return {name: tensor.clone() for name, tensor in load_file(whole_file(folder)).items()}
    except (OSError, SafetensorError) as error:
        raise Torn(f"{folder}: {whole_file(folder).name} cannot be read: {error}") from None


def write_whole(folder: Path, weights: Weights) -> None:
    """Add the weights to a folder that has all else."""
    save_file(dict(weights), whole_file(folder), metadata={"format": "pt"})


def whole_file(folder: Path) -> Path:
    """The file of the weights in a folder that has all else."""
    settings, adapters = ADAPTERS
    return folder / (adapters if (folder / settings).is_file() else WHOLE)


def _dtype(weights: Weights) -> str:
    """The type of most cells."""
    cells: Counter[str] = Counter()
    for tensor in weights.values():
        cells[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    return cells.most_common(1)[0][0]
