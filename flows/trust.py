"""Whether what a run from elsewhere brings with it may be run here: whoever can write where it lies has chosen it."""

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from flows.config import HELD_OUT, TrainConfig
from flows.runs import Run, saved_config, without_secrets
from infra.home import rlvf_home
from infra.security.printable import printable
from infra.storage import disk
from infra.storage.store import local_path
from rl.config import MADE, TINY
from rl.verifiers.spec import is_file
from tasks.problem_set import open_verifier

STRICT = ("auto", "bubblewrap")  # sandboxes that are not weaker than what this machine would choose
ELSEWHERE = ("http", "https", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "hf", "memory")


class NotTrustedError(ValueError):
    """A run brings code, addresses or paths that this home has not seen with it; one line that shows them."""


def trusted(run: Run, trust: bool = False) -> None:
    """Return if what the run brings may be used: it brings nothing that was not asked for here, it lies in this home,
    it is what this home saw last, `trust` says so, or somebody at the terminal does. What is trusted is remembered.

    Raises NotTrustedError.
    """
    path = local_path(run.uri)
    if path is not None and rlvf_home().resolve() in path.resolve().parents:
        return
    now, known = brought(run.config), _remembered(run)
    saved = brought(saved_config(run.uri))
    brings = {setting: value for setting, value in saved.items() if now.get(setting) == value}
    if not trust and any(known.get(setting) != value for setting, value in brings.items()):
        what = ", ".join(f"{setting} {value}" for setting, value in brings.items())
        seen = "brings something else than it did here before" if known else "was never trained from here"
        words = printable(f"{run.uri} {seen}, and going on would use its {what}")
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise NotTrustedError(f"{words}; if you know who wrote that, say --trust once")
        print(f"{words}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise NotTrustedError(f"{printable(run.uri)} is not trusted; nothing of it was run")
    remember(run)


def remember(run: Run) -> None:
    """This home has seen what the run brings: sources by their digest."""
    record = {"run": run.uri, "brings": {**_remembered(run), **brought(run.config)}}
    disk.write_file(_record(run), json.dumps(record).encode(), 0o600)


def brought(config: TrainConfig) -> dict[str, str]:
    """What a run's configuration chooses that its owner would not have others choose, by setting: code that is run, and
    how it is confined, addresses that are told of the run, files of this machine that are read into it."""
    found = {}
    names = {"verifier": config.verifier.name}
    sets = (*config.sets, *config.evals)
    # by both, as a path may be there twice
    names.update({f"verifier {each.verifier} of {each.path}": each.verifier for each in sets if each.verifier})
    for setting, name in names.items():
        if is_file(name):
            text = open_verifier(name, config.verifier).text
            found[setting] = f"{name} (sha256 {hashlib.sha256(text.encode()).hexdigest()})"
        elif name.startswith(("http://", "https://")):
            found[setting] = name
    if config.verifier.env:
        found["verifier.env"] = ", ".join(config.verifier.env)
    if config.verifier.network:
        found["verifier.network"] = "true"
    if config.verifier.sandbox not in STRICT:
        found["verifier.sandbox"] = config.verifier.sandbox
    shown = without_secrets(config)
    read = {"problems": (shown.problems,), "mix": shown.mix, "evals": shown.evals}
    for setting, several in read.items():
        if files := dict.fromkeys(each.path for each in several if _is_local(each.path)):
            found[setting] = ", ".join(files)
    if _is_folder(shown.policy.model):
        found["policy.model"] = shown.policy.model
    if shown.tracking.uri is not None:
        found["tracking.uri"] = shown.tracking.uri
    if shown.cluster.scheduler is not None:
        found["cluster.scheduler"] = shown.cluster.scheduler
    return found


def _is_local(path: str) -> bool:
    """Whether problems are read from this machine; of what fsspec knows (`local`, `simplecache::file`, `git`) only what
    is surely elsewhere is not."""
    protocol, separator, rest = path.partition("://")
    made = path in (*MADE, HELD_OUT)
    return not made and (not separator or protocol not in ELSEWHERE or "::" in rest)


def _is_folder(model: str) -> bool:
    """Whether a model is no name at a hub but files of this machine."""
    return model != TINY and (model.startswith(("/", ".", "~")) or Path(model).exists())


def _remembered(run: Run) -> Mapping[str, str]:
    try:
        found = json.loads(_record(run).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return dict(found["brings"]) if found.get("run") == run.uri else {}


def _record(run: Run) -> Path:
    return rlvf_home() / "trusted" / f"{hashlib.sha256(run.uri.encode()).hexdigest()[:32]}.json"
