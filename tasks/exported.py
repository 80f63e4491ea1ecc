"""The model of a run as a folder that other programs load: in Hugging Face layout, or in peft's where adapters are not
merged into it."""

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from infra import disk
from infra.home import rlvf_home
from infra.runs.checkpoints import MODEL
from infra.storage import place, store
from infra.storage.manifest import NotThere
from infra.storage.store import Folder
from infra.weights.chain import stored_version
from infra.weights.mirror import Mirror
from infra.weights.pin import newest_pinned
from infra.weights.quantization import restored
from infra.weights.version import published
from infra.weights.whole import write_whole
from rl.config import PolicyConfig
from rl.lora_config import LoraConfig
from rl.model.policy import DTYPES, read_weights
from tasks.calls.base import base_of
from tasks.calls.published import public_model

TYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}  # by what safetensors calls them
PATIENCE = 60.0  # seconds that the storage may be away


def export(
    run_uri: str,
    policy: PolicyConfig,
    public: str | None,
    out: Path,
    *,
    merge: bool,
    dtype: str,
    step: int | None = None,
) -> tuple[Path, int, str]:
    """Write the result of a run, or its newest version where that is newer, or version ``step``, to the folder ``out``,
    which appears when it is whole, or to one beside it where something has appeared there meanwhile; returns the one,
    the version's step, and the type of most of the weights. ``public`` is the model that the run started from, where
    every machine loads that itself; with ``merge`` its adapters are added to it, and the weights are of ``dtype``, by
    `auto` that of the frozen ones.

    Raises NotThere, Torn, BaseDamaged, and OtherBaseError where the model is another than the adapters were trained on.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    with _version(run_uri, policy, public, step) as (step, files, weights), disk.temporary_beside(out) as made:
        if merge and policy.lora.rank:
            with base_of(run_uri, public, PATIENCE) as base:
                _merge(base, policy.lora, files.path, weights, made, dtype)
        else:
            store.copy_folder(files, made, run_uri)
            if weights is not None:
                write_whole(made, {name: value.contiguous() for name, value in weights.items()})
        kind = _most_common_type(made)
        return disk.put_beside(made, out), step, kind


@contextmanager
def _version(
    run_uri: str, policy: PolicyConfig, public: str | None, step: int | None
) -> Iterator[tuple[int, Folder, dict[str, Tensor] | None]]:
    """The newest version, or that of this ``step``: its step, a folder with all of its files but perhaps the weights,
    and these where they are not in it."""
    if (result := _result(run_uri)) is not None and step in (None, result):
        with store.read_folder(place.join(run_uri, MODEL)) as kept:
            yield result, kept, None
        return
    weights = place.join(run_uri, "weights")
    # an older version cannot be pinned: it is gone where the run trains meanwhile and needs it no more
    with newest_pinned(run_uri) if step is None else nullcontext(stored_version(weights, step)) as version:
        model = None if public is None or policy.lora.rank else public_model(public, policy)
        mirror = Mirror(weights, patience=PATIENCE, cache=rlvf_home() / "cache" / "weights", public=model)
        with mirror.at(version) as found:
            yield version.step, mirror.root_folder, dict(restored(found))


def _most_common_type(folder: Path) -> str:
    """That of the floating point numbers in a folder's files of weights."""
    counts = Counter[str]()
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  it is no mapping
                part = opened.get_slice(name)
                counts[part.get_dtype()] += math.prod(part.get_shape())
    return TYPES[max(TYPES, key=counts.__getitem__)]


def _result(run_uri: str) -> int | None:
    """The step of the run's result; None where there is none, or the run was resumed after it."""
    try:
        said = store.read_manifest(place.join(run_uri, MODEL)).meta.get("step")
    except NotThere:
        return None
    step, steps = said if isinstance(said, int) else 0, published(run_uri)
    return step if not steps or step >= steps[-1] else None


def _merge(
    base: str, lora: LoraConfig, adapters: Path, weights: dict[str, Tensor] | None, out: Path, dtype: str
) -> None:
    from safetensors.torch import save_file
    from transformers.utils.logging import disable_progress_bar

    from rl.loading.policy import load_policy
    from rl.model.lora import merged_weights
    from rl.model.policy import save_config, save_tokenizer

    disable_progress_bar()  # type: ignore[no-untyped-call]  # of loading, on the terminal of whoever exports
    given = read_weights(adapters) if weights is None else weights
    config = PolicyConfig(device="cpu", dtype="float32", lora=lora)
    policy = load_policy(base, config, master=True, adapters=adapters, weights=given, check=False)
    assert policy.base is not None
    kind = DTYPES[policy.base.dtype if dtype == "auto" else dtype]
    save_config(policy, out, kind)
    save_tokenizer(policy, out)
    save_file(dict(merged_weights(policy.model, kind)), out / "model.safetensors", metadata={"format": "pt"})
