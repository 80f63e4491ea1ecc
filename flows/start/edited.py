"""Digests of what gives a run its rewards: `sources.json` under its URI. A run whose verifier was edited goes on by the
new one, and says so."""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256

from flows.start.runs import SOURCES
from flows.start.whole_paths import whole_verifier
from infra.security.secrets import masked
from infra.storage import place
from infra.storage.typed import read_typed
from rl.learning.algorithm_config import AlgorithmSpec
from tasks.sets.named_set import NamedSet
from tasks.sets.problem_set import ProblemSet
from tasks.sets.trained_on import TrainedOn

VERIFIER, ENVIRONMENT = "verifier ", "environment "


def edited(uri: str, problems: ProblemSet, algorithm: AlgorithmSpec | None = None) -> list[str]:
    """A line for each source that was edited since the run was trained last. Unknown of a run of an older version, and
    of a service.

    Raises:
        DamagedError: the file that says so is not as it was written.
    """
    kept = read_typed(place.join(uri, SOURCES), dict[str, str], "remove it, and nothing is compared with it") or {}
    was = {_whole(name): digest for name, digest in kept.items()}
    return [
        f"{name}: edited since"
        for name, digest in _digests(problems, algorithm).items()
        if was.get(name, digest) != digest
    ]


def edited_judges(uri: str, problems: ProblemSet) -> list[str]:
    """As `edited`, of verifiers and environments alone: an evaluation may have other problems. Raises DamagedError."""
    return [line for line in edited(uri, problems) if line.startswith((VERIFIER, ENVIRONMENT))]


def edited_problems(kept: Mapping[str, TrainedOn], trained: Iterable[NamedSet], held_out: int | None) -> list[str]:
    """A line for each of these sets that a run was ``trained`` on whose file is not as it was then.

    Raises:
        ProblemError, PathError: a file that cannot be read.
    """
    return [
        f"problems {masked(each.config.path)}: edited since"
        for each in trained
        if each.name in kept and not TrainedOn.of(each.split(held_out), ()).same_files(kept[each.name])
    ]


def save_sources(uri: str, problems: ProblemSet, algorithm: AlgorithmSpec | None = None) -> None:
    """Save the digests of what the run is trained by from now on."""
    place.write_text(place.join(uri, SOURCES), json.dumps(_digests(problems, algorithm), indent=2) + "\n")


def _digests(problems: ProblemSet, algorithm: AlgorithmSpec | None) -> dict[str, str]:
    """Digests by name: of the verifiers' sources, and of the columns that they are given beside prompt and target, of
    which `Run.refuse_other_problems` refuses others."""
    texts = {_whole(f"{VERIFIER}{masked(spec.name)}"): spec.source for spec in problems.verifiers.values()}
    if (environment := problems.environment) is not None and not environment.built_in:
        texts[f"{ENVIRONMENT}{masked(environment.name)}"] = environment.source
    if algorithm is not None and algorithm.text:
        texts[f"algorithm {masked(algorithm.name)}"] = algorithm.text
    for name in problems.files:
        rows = [
            json.dumps([problem.prompt, problem.target, problem.extra], sort_keys=True, default=str)
            for problem in (*problems.drawn, *problems.held_out)
            if problem.set == name
        ]
        texts[f"problems {name}, columns beside prompt and target"] = "\n".join(sorted(rows))
    return {name: sha256(text.encode("utf-8", "replace")).hexdigest() for name, text in texts.items() if text}


def _whole(name: str) -> str:
    """The name of a source, in any working directory: older versions have written a verifier's as it was given."""
    return f"{VERIFIER}{whole_verifier(name.removeprefix(VERIFIER))}" if name.startswith(VERIFIER) else name
