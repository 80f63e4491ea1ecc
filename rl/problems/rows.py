"""Problems: found in the rows of tables, divided into training and held-out sets, drawn for a step."""

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from hashlib import sha256
from itertools import islice
from pathlib import PurePosixPath
from typing import Any, TypeVar

import numpy as np

from rl.problems.tables import ProblemError, Row, Table, inside, short
from rl.records import Problem

# names of columns that are looked for where none is given; the first wins
PROMPTS = ("natural_language", "question", "problem", "prompt")
TARGETS = ("python_expression", "answer", "target", "solution")
UNUSUAL = ("natural_language", "python_expression")  # the last that a message names
P = TypeVar("P", bound=Problem)
T = TypeVar("T")
HELD_OUT = 200  # distinct prompts, where no number is given and there are enough
HELD_OUT_PLAYED = 50  # of those of an environment, as an episode takes as long as many completions
EPOCHS, REPLACEMENTS = (4,), (5,)  # keep the orders apart from each other, and from other draws with the same seed


@dataclass(frozen=True)
class Columns:
    """Which columns of a table hold a problem; the others go to `extra`."""

    prompt: str | None = None  # None: one of PROMPTS
    target: str | None = None  # None: one of TARGETS
    target_needed: bool = True  # a verifier of the user's may do without
    options: str = "--problems."  # how the names of the two options begin
    all_further: bool = False  # prompt and target are further columns too, by their own names


def read(table: Table, columns: Columns, check: Callable[[Problem], None]) -> list[Problem]:
    """The problems of a table. `check` raises ValueError for a target that its verifier cannot use.

    Raises ProblemError at the first thing wrong.
    """
    prompt = column(table, columns.prompt, PROMPTS, f"{columns.options}prompt")
    target = _target_column(table, columns)
    file = PurePosixPath(table.name).name
    lacks = f"{file} has no target column among {short(table.header)}; name yours: {columns.options}target NAME"
    problems = [_problem(table, row, prompt, target, columns, check, lacks) for row in table.rows]
    if not problems:
        raise ProblemError(f"{table.name} has column names but no problem below them")
    return problems


def split(
    problems: Iterable[P], held_out: int | None, known_by: Callable[[P], str] | None = None
) -> tuple[list[P], list[P]]:
    """(training, held-out), with `held_out` distinct prompts in the second; all problems of one prompt are on one side,
    and of those that are played all that are alike (`asked`; another way to tell them is ``known_by``). None holds out
    HELD_OUT of them, of fewer than five times as many a fifth.

    Ranks by the prompts' digests, so which are held out, and the order of both lists, depend on neither seed nor file
    order. Raises ProblemError if nothing is left to train on.
    """
    of = known_by or asked
    ranked = sorted(problems, key=lambda problem: (digest(of(problem)), problem.target))
    prompts = sorted({of(problem) for problem in ranked}, key=digest)
    if held_out is None:
        held_out = min(HELD_OUT, len(prompts) // 5)
    if not 0 <= held_out < len(prompts):
        raise ProblemError(
            f"cannot hold out {held_out} of {len(prompts)} distinct prompts: choose --held_out 0 to "
            f"{max(len(prompts) - 1, 0)} (0 evaluates on none), leave it out, or give more problems"
        )
    kept_out = set(prompts[:held_out])
    return (
        [problem for problem in ranked if of(problem) not in kept_out],
        [problem for problem in ranked if of(problem) in kept_out],
    )


def draw(problems: Sequence[T], stream: int, step: int, position: int, own: int, count: int, skip: int = 0) -> list[T]:
    """Items [skip, skip + count) of the endless sequence that belongs to a step, whatever was drawn before.

    Its first `own` items are at [position, position + own) of `stream`, a sequence that is one random order of all P
    problems (an epoch) after another: where each step begins at the position at which the one before it ended, every
    problem comes once an epoch. The rest replaces problems that taught nothing: in a random order of the step's own,
    none twice in a step before all have come (save at the border of two epochs).
    Raises ProblemError if there are no problems.
    """
    assert min(stream, step, position, own, count, skip) >= 0
    if not problems:
        raise ProblemError("no problems to draw from")
    return [problems[row] for row in islice(_rows(len(problems), stream, step, position, own), skip, skip + count)]


def _rows(total: int, stream: int, step: int, position: int, own: int) -> Iterator[int]:
    """The rows of a step, as `draw` says; endless."""
    drawn = set()
    for at in range(position, position + own):
        epoch, place = divmod(at, total)
        row = _order(total, stream, epoch)[place]
        drawn.add(row)
        yield row
    replacements = np.random.default_rng(np.random.SeedSequence([stream, step], spawn_key=REPLACEMENTS))
    while True:
        for row in replacements.permutation(total).tolist():
            if row not in drawn:
                drawn.add(row)
                yield row
        drawn.clear()


@lru_cache(maxsize=16)
def _order(total: int, stream: int, epoch: int) -> tuple[int, ...]:
    generator = np.random.default_rng(np.random.SeedSequence([stream, epoch], spawn_key=EPOCHS))
    return tuple(generator.permutation(total).tolist())


def _target_column(table: Table, columns: Columns) -> str | None:
    if columns.target is None and not columns.target_needed and not set(TARGETS) & set(table.header):
        return None
    return column(table, columns.target, TARGETS, f"{columns.options}target")


def column(table: Table, named: str | None, known: tuple[str, ...], option: str) -> str:
    """The column that is named, be it a dotted path into one, or the only one with a known name. Raises
    ProblemError."""
    place = table.at(1) if table.unit == "line" else table.name
    found = [column for column in ([named] if named is not None else known) if column in table.header]
    if len(found) == 1 or (found and found[0] == known[0]):
        return found[0]
    if found:
        raise ProblemError(
            f"{place}: {' and '.join(map(repr, found))} could both be meant; name one: {option} {found[0]}"
        )
    if named is not None and named.partition(".")[0] in table.header:
        return named  # of each row it is seen whether there is such a value
    wanted, *further = [named] if named else sorted(known, key=UNUSUAL.__contains__)
    near = [each for name in ([named] if named else known) for each in get_close_matches(name, table.header, 1, 0.75)]
    others = f" (nor {', '.join(further)})" if further else ""
    remedy = f"; is it {option} {shlex.quote(near[0])}?" if near else f"; name yours: {option} NAME"
    raise ProblemError(f"{place}: no column {wanted!r}{others} among {short(table.header)}{remedy}")


def _problem(
    table: Table,
    row: Row,
    prompt_column: str,
    target_column: str | None,
    columns: Columns,
    check: Callable[[Problem], None],
    lacks: str,
) -> Problem:
    place = table.at(row.number)
    prompt = inside(row.fields, prompt_column)
    if prompt is not None and not isinstance(prompt, str):
        raise ProblemError(
            f"{place}: {prompt_column} is {short(prompt)}, not text{_below(prompt, prompt_column, columns)}"
        )
    prompt = (prompt or "").strip()
    target = "" if target_column is None else _text(inside(row.fields, target_column)).strip()
    if not prompt or (columns.target_needed and not target):
        raise ProblemError(f"{place}: {_emptiness(row, str(target_column) if prompt else prompt_column)}")
    apart = ("prompt", "target") if columns.all_further else (prompt_column, target_column)
    fields = {column: value for column, value in row.fields.items() if column not in apart}
    source, why = f"{PurePosixPath(table.name).name}:{row.number}", lacks if target_column is None else ""
    problem = Problem(prompt, target, source, fields, no_target=why)
    try:
        check(problem)
    except ValueError as error:
        raise ProblemError(f"{place}: {target_column} {short(target)} {error}") from error
    return problem


def _below(value: Any, column: str, columns: Columns) -> str:
    """How to name text within the value of a column."""
    texts = [key for key, each in value.items() if isinstance(each, str)] if isinstance(value, dict) else []
    if isinstance(value, list):  # messages of a chat: the last one asks
        texts = [
            f"{at}.content" for at, each in enumerate(value) if "content" in (each if isinstance(each, dict) else ())
        ]
        texts = texts[-1:]
    return f"; name the text in it: {columns.options}prompt {shlex.quote(f'{column}.{texts[0]}')}" if texts else ""


def _emptiness(row: Row, column: str) -> str:
    """What a row has instead of a value, in words."""
    above, _, key = column.rpartition(".")
    if column in row.fields or not above:
        return f"{column} is empty"
    there = inside(row.fields, above)
    if isinstance(there, dict) and key not in there:
        return f"{above} has no {key!r} but {short(list(there))}"
    return (
        f"{column} is empty" if isinstance(there, dict | list) else f"{above} is {short(there)}, with no {key!r} in it"
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)


def asked(problem: Problem) -> str:
    """What a problem is known by: its prompt, and of one that is played all that reset is given, as one prompt may
    begin any number of episodes."""
    if not problem.played:
        return problem.prompt
    return json.dumps([problem.prompt, problem.target, problem.extra], sort_keys=True, default=repr)


def normalized(prompt: str) -> str:
    """The prompt without differences of case and blanks: a model that has learned one such prompt knows the others."""
    return " ".join(prompt.lower().split())


def digest(prompt: str) -> bytes:
    """The rank of a prompt."""
    return sha256(prompt.encode(errors="surrogatepass")).digest()
