"""What gives a run its rewards, known again by digests: `sources.json` under its URI. A run whose verifier was edited
goes on by the new one, and says so."""

import json
from hashlib import sha256

from infra.security.secrets import masked
from infra.storage import place
from infra.storage.typed import read_typed
from tasks.problem_set import ProblemSet

SOURCES = "sources.json"


def edited(uri: str, problems: ProblemSet) -> list[str]:
    """What is not as it was when the run was trained last, a line each. What that was is unknown of a run of an older
    version, and of a service.

    Raises:
        DamagedError: the file that says so is not as it was written.
    """
    was = read_typed(place.join(uri, SOURCES), dict[str, str], "remove it, and nothing is compared with it") or {}
    return [f"{name}: edited since" for name, digest in _digests(problems).items() if was.get(name, digest) != digest]


def save_sources(uri: str, problems: ProblemSet) -> None:
    """Write down what the run is trained by from now on."""
    place.write_text(place.join(uri, SOURCES), json.dumps(_digests(problems), indent=2) + "\n")


def _digests(problems: ProblemSet) -> dict[str, str]:
    """By what they are of: the verifiers, and what they are given of the files beside prompts and targets, whose other
    words `Run.refuse_other_problems` refuses."""
    texts = {f"verifier {masked(spec.name)}": spec.source for spec in problems.verifiers.values()}
    for name in problems.files:
        rows = [
            json.dumps([problem.prompt, problem.target, problem.extra], sort_keys=True, default=str)
            for problem in (*problems.drawn, *problems.held_out)
            if problem.set == name
        ]
        texts[f"problems {name}, columns beside prompt and target"] = "\n".join(sorted(rows))
    return {name: sha256(text.encode("utf-8", "replace")).hexdigest() for name, text in texts.items() if text}
