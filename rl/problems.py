"""Problems: read from CSV text, divided into training and held-out sets, drawn for a step.

P problems.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from hashlib import sha256
from pathlib import PurePosixPath

import numpy as np

from rl.arithmetic import UnfitExpression, evaluate
from rl.records import Problem

TARGET = "python_expression"
PROMPT = "natural_language"


class ProblemError(ValueError):
    """Problems that cannot be used: one line that names the file, the line in it, and what is wrong."""


def read_csv(lines: Iterable[str], name: str) -> list[Problem]:
    """Problems of an open CSV file with the columns python_expression and natural_language; others go to `extra`.

    `name` is what messages call the file. Lines are counted from 1, as an editor does, and a row is named by its first.
    Blank lines and a byte order mark are passed over. Raises ProblemError at the first thing wrong.
    """
    rows = _rows(lines, name)
    _, header = next(rows, (0, None))
    if header is None:
        raise ProblemError(
            f"{name} is empty: expected a line with the columns {TARGET},{PROMPT}, then one problem a line"
        )
    _check_header(header, name)
    problems = [
        _problem(dict(zip(header, row, strict=True)), name, line) for line, row in _even(rows, len(header), name)
    ]
    if not problems:
        raise ProblemError(f"{name} has column names but no problem below them")
    return problems


def split(problems: Iterable[Problem], held_out: int) -> tuple[list[Problem], list[Problem]]:
    """(training, held-out), with `held_out` distinct prompts in the second; all problems of one prompt are on one side.

    Ranks by the prompts' digests, so which are held out, and the order of both lists, depend on neither seed nor file
    order. Raises ProblemError if nothing is left to train on.
    """
    ranked = sorted(problems, key=lambda problem: (_digest(problem.prompt), problem.target))
    prompts = sorted({problem.prompt for problem in ranked}, key=_digest)
    if not 0 <= held_out < len(prompts):
        raise ProblemError(
            f"cannot hold out {held_out} of {len(prompts)} distinct prompts: choose 0 to {max(len(prompts) - 1, 0)}, "
            "or give more problems"
        )
    kept_out = set(prompts[:held_out])
    return (
        [problem for problem in ranked if problem.prompt not in kept_out],
        [problem for problem in ranked if problem.prompt in kept_out],
    )


def draw(problems: Sequence[Problem], seed: int, step: int, count: int, skip: int = 0) -> list[Problem]:
    """Items [skip, skip + count) of the endless sequence that belongs to (seed, step), whatever was drawn before.

    The sequence is one random order of all P problems after another: none comes twice within the first P. A later draw
    of the same step continues with `skip` at what it has already taken. Raises ProblemError if there are no problems.
    """
    assert min(seed, step, count, skip) >= 0
    if not problems:
        raise ProblemError("no problems to draw from")
    generator = np.random.default_rng(np.random.SeedSequence([seed, step]))
    order: list[int] = []
    while len(order) < skip + count:
        order += generator.permutation(len(problems)).tolist()
    return [problems[index] for index in order[skip : skip + count]]


def _rows(lines: Iterable[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """(first line, fields) of each row that is not blank."""
    reader = csv.reader(_without_mark(lines), strict=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ProblemError(f"{name}: line {line}: broken row: {error} (is a quote left open?)") from error
        except UnicodeDecodeError as error:
            # text is decoded in blocks, so the place may be some lines further on
            raise ProblemError(
                f"{name}: line {line} or later: not UTF-8 text ({error.reason}); save it as UTF-8"
            ) from error
        if any("\0" in value for value in row):
            raise ProblemError(f"{name}: line {line}: holds a NUL byte; is this a text file?")
        if row:
            yield line, row


def _without_mark(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield line.removeprefix("\ufeff") if number == 0 else line


def _check_header(header: list[str], name: str) -> None:
    for column in (TARGET, PROMPT):
        if column not in header:
            near = get_close_matches(column, header, n=1)
            meant = f"; is {_short(near[0])} meant?" if near else ""
            raise ProblemError(f"{name}: line 1: no column {column!r} among {_short(header)}{meant}")
    twice = next((column for column in header if header.count(column) > 1), None)
    if twice is not None:
        raise ProblemError(f"{name}: line 1: the column {_short(twice)} is there more than once")


def _even(rows: Iterable[tuple[int, list[str]]], width: int, name: str) -> Iterator[tuple[int, list[str]]]:
    for line, row in rows:
        if len(row) != width:
            raise ProblemError(
                f"{name}: line {line}: broken row: {len(row)} fields where the first line names {width} columns "
                "(text with a comma in it belongs in double quotes)"
            )
        yield line, row


def _problem(fields: dict[str, str], name: str, line: int) -> Problem:
    target, prompt = fields.pop(TARGET).strip(), fields.pop(PROMPT).strip()
    for column, value in ((TARGET, target), (PROMPT, prompt)):
        if not value:
            raise ProblemError(f"{name}: line {line}: {column} is empty")
    try:
        evaluate(target)
    except UnfitExpression as unfit:
        raise ProblemError(f"{name}: line {line}: {TARGET} {_short(target)} cannot be evaluated ({unfit})") from unfit
    return Problem(prompt=prompt, target=target, source=f"{PurePosixPath(name).name}:{line}", extra=fields)


def _short(value: object) -> str:
    """A quotation that keeps a message one readable line, whatever the file holds."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _digest(prompt: str) -> bytes:
    return sha256(prompt.encode()).digest()
