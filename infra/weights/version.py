"""Published weights. A policy is a version of weights at a URI: a folder that makes them, whole or from another
version. `infra.weights.publisher` writes them, `infra.weights.mirror` reads them.

StoreError ─ NotThere    no such version, yet
           ├ Gone        no such version any more: newer ones are there
           └ Torn        what is stored is damaged
               └ StaleBase   it starts from other weights than those that are here
"""

from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator

from infra.errors import first_fault
from infra.storage import place, store
from infra.storage.manifest import Manifest, StoreError, Torn

ADAPTERS = ("adapter_config.json", "adapter_model.safetensors")  # where weights are those of adapters, as peft has them


class Gone(StoreError):  # noqa: N818
    """The version was removed; newer ones are there."""

    remedy = "started again, it takes the newest version"


class StaleBase(Torn):
    """A difference starts from other weights than those that are here."""


class SyncConfig(BaseModel):
    """How weights go from the trainer to the generators."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: Literal["auto", "float32", "bfloat16", "float16", "int8"] = Field(
        "auto",
        description="dtype of published weights; auto is the trainer's policy.dtype, of adapters policy.lora.base; "
        "int8, a scale for every row, is inexact",
    )
    anchor_every: int = Field(32, ge=2, le=1024, description="the most versions that one delta spans, a power of two")
    base: Literal["stored", "public"] = Field(
        "stored",
        description="where generators get the first version: from the run's storage, or by themselves, where every "
        "machine can load policy.model: a hub id, or a folder that all have",
    )
    patience: float = Field(300.0, ge=0, description="seconds that a storage may be away before the run ends")

    @field_validator("anchor_every")
    @classmethod
    def _power_of_two(cls, every: int) -> int:
        if every & (every - 1):
            raise ValueError(
                f"{every} is no power of two; take {1 << every.bit_length() - 1} or {1 << every.bit_length()}"
            )
        return every


class VersionId(BaseModel):
    """What tells a version from every other, wherever it is stored."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    step: int = Field(ge=0)  # how many updates made it
    digest: str  # blake3 of the weights: see `weights_digest`


@dataclass(frozen=True)
class PolicyVersion:
    """Weights, published and immutable."""

    step: int  # how many updates made it
    uri: str
    digest: str  # blake3 of the weights: see `weights_digest`
    files: str = field(default="", compare=False)  # digest of what lies beside them: see `files_digest`

    def __str__(self) -> str:
        return f"v{self.step}"

    @property
    def id(self) -> VersionId:
        return VersionId(step=self.step, digest=self.digest)


@dataclass(frozen=True)
class Published:
    """A version, and what its publication took."""

    version: PolicyVersion
    bytes: int = 0  # written before generators could have it
    full: int = 0  # bytes of the weights
    changed: float = 0.0  # share of the cells
    encode_seconds: float = 0.0
    upload_seconds: float = 0.0
    seconds: float = 0.0  # from when the weights were there until generators could have them
    warnings: tuple[str, ...] = ()  # of what went wrong since the version before and costs generators time only


class VersionManifest(BaseModel):
    """What the manifest of a published folder says of the weights that it makes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    step: int = Field(ge=0)
    digest: str
    base: VersionId | None  # None: the folder holds them whole, in Hugging Face layout
    public: str | None = None  # or, without weights, what is beside those of this public model
    dtype: str  # of the floating point tensors, or int8
    bytes: int = Field(ge=0)  # of the weights in memory
    changed: float = Field(ge=0, le=1)  # share of the cells that differ from the base's
    sampling: dict[str, JsonValue] = {}  # how the run samples from them
    files: str = ""  # digest of what lies beside weights that are whole


def weights_uri(run_uri: str, step: int) -> str:
    """Where version ``step`` of a run lies."""
    return place.join(run_uri, "weights", f"v{step}")


def version_manifest(uri: str, manifest: Manifest) -> VersionManifest:
    """What a published folder's manifest says of its weights; raises Torn."""
    try:
        return VersionManifest.model_validate(manifest.meta)
    except ValidationError as error:
        raise Torn(f"{uri} holds no weights of ours: {': '.join(first_fault(error))}") from None


def published(run_uri: str) -> list[int]:
    """The versions that a run holds, oldest first."""
    return store.versions(place.join(run_uri, "weights"), prefix="v")


def newest_version(run_uri: str) -> PolicyVersion | None:
    """The newest published version of a run."""
    steps = published(run_uri)
    return published_version(weights_uri(run_uri, steps[-1])) if steps else None


def newest_manifest(run_uri: str) -> VersionManifest | None:
    """What the newest published version of a run says of its weights; raises NotThere and Torn."""
    if not (steps := published(run_uri)):
        return None
    uri = weights_uri(run_uri, steps[-1])
    return version_manifest(uri, store.read_manifest(uri))


def published_version(uri: str) -> PolicyVersion:
    """The version stored at ``uri``; raises NotThere and Torn."""
    manifest = version_manifest(uri, store.read_manifest(uri))
    return PolicyVersion(manifest.step, uri, manifest.digest, manifest.files)
