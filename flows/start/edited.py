"""Digests of what gives a run its rewards: `sources.json` under its URI. A run whose verifier was edited goes on by the
new one, and says so."""

import json
from hashlib import sha256

from flows.start.runs import SOURCES
from infra.security.secrets import masked
from infra.storage import place
from infra.storage.typed import read_typed
from tasks.problem_set import ProblemSet


def edited(uri: str, problems: ProblemSet) -> list[str]:
    """A line for each source that was edited since the run was trained last. Unknown of a run of an older version, and
    of a service.

    Raises:
        DamagedError: the file that says so is not as it was written.
    """
    was = read_typed(place.join(uri, SOURCES), dict[str, str], "remove it, and nothing is compared with it") or {}
    return [f"{name}: edited since" for name, digest in _digests(problems).items() if was.get(name, digest) != digest]


def save_sources(uri: str, problems: ProblemSet) -> None:
    """Save the digests of what the run is trained by from now on."""
    place.write_text(place.join(uri, SOURCES), json.dumps(_digests(problems), indent=2) + "\n")


def _digests(problems: ProblemSet) -> dict[str, str]:
    """Digests by name: of the verifiers' sources, and of the columns that they are given beside prompt and target, of
    which `Run.refuse_other_problems` refuses others."""
    texts = {f"verifier {masked(spec.name)}": spec.source for spec in problems.verifiers.values()}
    for name in problems.files:
        rows = [
            json.dumps([problem.prompt, problem.target, problem.extra], sort_keys=True, default=str)
            for problem in (*problems.drawn, *problems.held_out)
            if problem.set == name
        ]
        texts[f"problems {name}, columns beside prompt and target"] = "\n".join(sorted(rows))
    return {name: sha256(text.encode("utf-8", "replace")).hexdigest() for name, text in texts.items() if text}
