"""A problem set: what to train on, step by step, and what is kept out of training."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath

from infra.files import open_texts
from rl import grammar, problems
from rl.problems import ProblemError
from rl.records import Problem

GRAMMAR = "grammar"


@dataclass(frozen=True)
class ProblemSet:
    """Problems of step k are a function of (seed, k) alone."""

    name: str
    draw: Callable[[int, int, int], list[Problem]]  # (step, how many, how many of the step's to skip)
    held_out: tuple[Problem, ...]  # shares no prompt with what ``draw`` gives


def open_problems(path: str, held_out: int, seed: int) -> ProblemSet:
    """The grammar's problems, or those of an fsspec path or glob of CSV files.

    Args:
        held_out: how many problems are kept out of training, the same ones for every seed.

    Raises:
        ProblemError: a file that is missing, empty or broken, or too small to keep ``held_out`` of its problems out.
    """
    if path == GRAMMAR:
        return ProblemSet(
            name=GRAMMAR,
            draw=lambda step, count, skip: grammar.draw(seed, step, count, skip=skip),
            held_out=tuple(grammar.draw(0, 0, held_out, side="held_out")),
        )
    train, kept = problems.split(read_problems(path), held_out)
    return ProblemSet(
        name=problem_set_name(path),
        draw=lambda step, count, skip: problems.draw(train, seed, step, count, skip),
        held_out=tuple(kept),
    )


def read_problems(path: str) -> list[Problem]:
    """All problems of an fsspec path or glob of CSV files."""
    found = [problem for name, lines in open_texts(path) for problem in problems.read_csv(lines, name)]
    if not found:
        raise ProblemError(f"{path}: no problems")
    return found


def problem_set_name(path: str) -> str:
    """A short name, for people and in the names of metrics: the file's, without its endings."""
    stem = PurePosixPath(path.rpartition("://")[2]).name.split(".")[0].replace("*", "all")
    return re.sub(r"\W+", "-", stem).strip("-") or "problems"
