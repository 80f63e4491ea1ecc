"""What a run is trained on, kept with it, and what the run was trained on whose model it begins from: neither measures
how it solves problems that it has not seen."""

import base64
from collections.abc import Iterable, Sequence

from pydantic import TypeAdapter

from infra.runs.checkpoints import BEST, EXAMPLES, MODEL
from infra.storage import place
from infra.storage.typed import read_typed
from rl.problems.rows import asked, normalized
from rl.records import Problem
from tasks.sets.problem_set import ProblemSet
from tasks.sets.trained_on import TrainedOn, prompts_of, seen_among, short_digest

PROBLEMS = "problems.json"  # of a run that learns from rewards: its files may be others later
BEFORE = ""  # in it, what the policy was trained on before; no set is named so
RESTORE = "restore it, or start a new run"


def save_problems(uri: str, problems: ProblemSet) -> None:
    """Write down what the run is trained on, for `Run.refuse_other_problems` and for its evaluation."""
    before = {BEFORE: TrainedOn(rows=0, digest="", trained=b"".join(sorted(problems.before)))}
    kept = {**problems.files, **(before if problems.before else {})}
    place.write_bytes(place.join(uri, PROBLEMS), TypeAdapter(dict[str, TrainedOn]).dump_json(kept, indent=2) + b"\n")


def saved_problems(uri: str) -> dict[str, TrainedOn] | None:
    """What the run was trained on, by the name of each set that is read from files, and BEFORE; None of a run of an
    older version.

    Raises:
        DamagedError: the file that says so is not as it was written.
    """
    return read_typed(place.join(uri, PROBLEMS), dict[str, TrainedOn], RESTORE)


def saved_before(uri: str) -> frozenset[bytes]:
    """Short digests of the prompts that the run's policy was trained on before it. Raises DamagedError."""
    kept = (saved_problems(uri) or {}).get(BEFORE)
    return frozenset() if kept is None else kept.prompts()


def save_examples(uri: str, digest: str, examples: Iterable[Problem], before: frozenset[bytes]) -> None:
    """Write down the examples that a run learns from, by the digest of all and those of their prompts."""
    trained = before | {short_digest(normalized(each.prompt)) for each in examples}
    kept = {"digest": digest, "trained": base64.b64encode(b"".join(sorted(trained))).decode()}
    place.write_bytes(place.join(uri, EXAMPLES), TypeAdapter(dict[str, str]).dump_json(kept) + b"\n")


def saved_examples(uri: str) -> dict[str, str]:
    """What `save_examples` wrote; empty where it has not. Raises DamagedError."""
    return read_typed(place.join(uri, EXAMPLES), dict[str, str], RESTORE) or {}


def trained_before(model: str) -> frozenset[bytes]:
    """Short digests of the prompts that the run was trained on whose result the folder ``model`` is, and those before
    it. Raises DamagedError."""
    uri, _, name = model.rstrip("/").rpartition("/")
    if name not in (MODEL, BEST) or not uri:
        return frozenset()
    shown = base64.b64decode(saved_examples(uri).get("trained", ""))
    return prompts_of([*(saved_problems(uri) or {}).values(), TrainedOn(rows=0, digest="", trained=shown)])


def notes_on_prompts(model: str, problems: ProblemSet) -> list[str]:
    """For people: which problems are not trained on, and which are held out although the policy has seen them."""
    notes = []
    if problems.spared:
        notes.append(
            f"{problems.spared} problems are not trained on: their prompts are held out too, but for case and blanks"
        )
    if seen := note_on_lineage(model, problems.held_out, problems.before):
        notes.append(seen)
    return notes


def notes_on_held_out(held_out: int | None, problems: ProblemSet) -> list[str]:
    """For people: of which sets none is held out, and why."""
    if held_out == 0:
        return ["no problems are held out of training, so there is no evaluation on such"]
    prompts: dict[str, set[str]] = {}
    for each in problems.drawn:
        prompts.setdefault(each.set, set()).add(asked(each))
    kept = {each.set for each in problems.held_out}
    return [note_on_few(name, len(of)) for name, of in prompts.items() if name not in kept]


def note_on_few(name: str, prompts: int) -> str:
    """A line for people on a set of so few prompts that none is held out where no number is given."""
    if prompts == 1:
        return f"{name}: 1 prompt, which is trained on, and none to hold out and evaluate on; give more"
    why = "a fifth of them, rounded down, is none; --held_out 1 holds one out"
    return f"{name}: {prompts} prompts, none of which is held out to evaluate on: {why}"


def note_on_lineage(model: str, held_out: Sequence[Problem], before: frozenset[bytes]) -> str:
    """A line for people where the policy has seen some of what is held out; empty where it has not."""
    seen = seen_among(held_out, before)
    count = sum(normalized(asked(each)) in seen for each in held_out)
    if not count:
        return ""
    return f"{count} of the {len(held_out)} that are held out are among those that {model} was trained on"
