"""A model's files, in a folder or on the Hugging Face hub: whether they are there, and whole. No weights are read."""

import json
import logging
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra.errors import one_line
from rl.config import PICKLED

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
NO_ID = "there is no such folder, and it is no id of the hub, such as Qwen/Qwen3-0.6B"
AGAIN = "copy the model there again, or save it again with model.save_pretrained(FOLDER)"
HUB_SECONDS = 2.0  # that the hub may take for an answer


class ModelFilesError(ValueError):
    """A model whose files cannot be used; the message says why and continues "policy.model 'x': "."""


class UnknownModel(ModelFilesError):  # noqa: N818
    """A hub id that neither the hub nor its cache knows."""


@dataclass(frozen=True)
class Found:
    """Where a model was found."""

    source: str  # what transformers is given: the id, or a folder
    note: str = ""  # what a person should know


def find_model(model: str) -> Found:
    """A folder, or a hub id that the hub or its cache knows; its files are looked at. Raises ModelFilesError."""
    path = Path(model)
    if path.is_dir():  # as transformers decides
        check_folder(path)
        return Found(model)
    if "://" in model:
        raise ModelFilesError("a model is a folder or a hub id; copy it to a folder first")
    if model.startswith(("/", ".", "~")) or model.count("/") > 1 or path.exists():
        raise ModelFilesError("is a file, not a folder" if path.exists() else "there is no such folder")
    return find_on_hub(model)


def check_folder(folder: Path) -> None:
    """Raises ModelFilesError unless there is a configuration, and weights that are as long as they say."""
    config = folder / CONFIG
    if not config.is_file():
        if (folder / ADAPTER).is_file():
            raise ModelFilesError(_no_weights([ADAPTER]))
        inner = folder / "model"
        hint = f"its subfolder does: {inner}" if (inner / CONFIG).is_file() else AGAIN
        raise ModelFilesError(f"the folder has no {CONFIG}; {hint}")
    if not isinstance(_json(config), dict):
        raise ModelFilesError(f"{CONFIG} holds no settings; {AGAIN}")
    for file in weight_files(folder):
        _check_weights(file)


def weight_files(folder: Path) -> list[Path]:
    """The files of a folder's weights. Raises ModelFilesError where one is missing."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise ModelFilesError(_no_weights([file.name for file in folder.iterdir()]))
    index = _json(folder / INDEX)
    shards = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(shards, dict) or not shards:
        raise ModelFilesError(f"{INDEX} names no weights; {AGAIN}")
    files = [folder / str(name) for name in dict.fromkeys(shards.values())]
    if missing := [file.name for file in files if not file.is_file()]:
        there = f"{len(files) - len(missing)} of {len(files)} files are there"
        raise ModelFilesError(f"{missing[0]} is missing, {there}; {AGAIN}")
    return files


def find_on_hub(model: str) -> Found:
    """The id where the hub knows it, or the copy in its cache where the hub is away. Raises ModelFilesError."""
    from huggingface_hub import HfApi, constants

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # what matters is said in a line of ours
    if constants.HF_HUB_OFFLINE:
        return _cached(model, "HF_HUB_OFFLINE is set")
    answered: list[Sequence[str] | Exception] = []
    # in a thread of its own: the time limit of a request does not hold for the look-up of a host's name
    hub = HfApi()  # importing that takes a second of this machine's time, which is none of the hub's
    asking = threading.Thread(target=lambda: answered.append(_ask_hub(hub, model)), daemon=True)
    asking.start()
    asking.join(HUB_SECONDS)
    match answered:
        case [ModelFilesError() as error]:
            raise error
        case [Exception() as error]:
            return _cached(model, f"{constants.ENDPOINT} cannot be reached ({one_line(error)})")
        case [names]:
            assert not isinstance(names, Exception)
            if CONFIG not in names:
                raise ModelFilesError(f"the hub's files of it include no {CONFIG}")
            if not any(name.startswith("model") and name.endswith(".safetensors") for name in names):
                raise ModelFilesError(_no_weights(names))
            return Found(model)
    return _cached(model, f"{constants.ENDPOINT} does not answer within {HUB_SECONDS:g} s")


def _ask_hub(hub: "HfApi", model: str) -> Sequence[str] | Exception:
    """The names of the model's files, asked for once; or why there are none."""
    from huggingface_hub import constants
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, RepositoryNotFoundError

    try:
        return [file.rfilename for file in hub.model_info(model, timeout=2 * HUB_SECONDS).siblings or ()]
    except HFValidationError:
        return ModelFilesError(NO_ID)
    except GatedRepoError:
        return ModelFilesError(f"its licence has to be accepted at {constants.ENDPOINT}/{model}, then `hf auth login`")
    except RepositoryNotFoundError:
        return UnknownModel(f"{constants.ENDPOINT} has no model of that id, or a private one (then: `hf auth login`)")
    except HfHubHTTPError as error:
        if error.response is not None and error.response.status_code == 404:
            return UnknownModel(f"{constants.ENDPOINT} has no model of that id")
        return error
    except Exception as error:  # noqa: BLE001  the faults of its transport are those of a library that changes
        return error


def _cached(model: str, why: str) -> Found:
    """The copy in the hub's cache; processes that start from now on do not ask the hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = snapshot_download(model, local_files_only=True)
    except HFValidationError:
        raise ModelFilesError(NO_ID) from None
    except LocalEntryNotFoundError:
        raise UnknownModel(
            f"{why}, and this machine has no copy of such a model: offline? then name a folder that holds one"
        ) from None
    try:
        check_folder(Path(folder))
    except ModelFilesError as error:
        raise ModelFilesError(f"{why}, and the copy of this machine is not whole: {error}") from None
    os.environ["HF_HUB_OFFLINE"] = "1"
    return Found(folder, f"{why}: the copy of this machine is taken")


def _check_weights(file: Path) -> None:
    """Raises ModelFilesError unless the header is that of a file of this length."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np") as opened:
            if not opened.keys():
                raise ModelFilesError(f"{file.name} holds no weights; {AGAIN}")
    except (SafetensorError, OSError) as error:
        raise ModelFilesError(
            f"{file.name} ({file.stat().st_size:,} bytes) is cut off or damaged: {one_line(error)}; {AGAIN}"
        ) from error


def _no_weights(names: Sequence[str]) -> str:
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        return f"no {WEIGHTS}, and {PICKLED}"
    if any(name.endswith(".gguf") for name in names):
        return f"no {WEIGHTS}, and GGUF files cannot be trained; take the model they were made of"
    if ADAPTER in names:
        how = "with `rlvf export RUN --merge`, or merge_and_unload of peft"
        return f"no {WEIGHTS} but an adapter; merge it into its model first, {how}"
    return f"there are no weights: no {WEIGHTS} and no {INDEX}"


def _json(file: Path) -> object:
    try:
        return json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"{file.name} cannot be read: {one_line(error)}; {AGAIN}") from error
