"""A problem set: what to train on, step by step, and what is kept out of training."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

import numpy as np

from infra.storage.files import as_text, open_files, open_texts
from rl import countdown, grammar, problems, tables
from rl.config import COUNTDOWN, GRAMMAR, ProblemsConfig, VerifierConfig
from rl.problems import Columns
from rl.records import Briefing, Problem
from rl.tables import ProblemError
from rl.verifiers.opened import require_math
from rl.verifiers.spec import MATH, VerifierError, VerifierSpec, check_source, is_file, named, split_name

MADE = {GRAMMAR: grammar.draw, COUNTDOWN: countdown.draw}  # problems that are made in code
EVALUATED = 200  # of their held-out side, where no number is given
STREAM = (3,)  # keeps the draws among sets apart from others with the same seed

Draw = Callable[[int, int, int], list[Problem]]  # (step, how many, how many of the step's to skip)


@dataclass(frozen=True)
class ProblemSet:
    """Problems of step k are a function of (seed, k) alone."""

    name: str
    draw: Draw
    held_out: tuple[Problem, ...]  # shares no prompt with what ``draw`` gives
    verifiers: Mapping[str, VerifierSpec]  # by the name of the set that a problem is of


@dataclass(frozen=True)
class _Set:
    """One of the sets that are mixed."""

    config: ProblemsConfig
    name: str
    verifier: VerifierSpec

    def read(self) -> list[Problem]:
        """All problems of its files. Raises ProblemError."""
        found = [problem for table in read_tables(self.config.path) for problem in self._problems(table)]
        if not found:
            raise ProblemError(f"{self.config.path}: no problems")
        return self.marked(found)

    def _problems(self, table: tables.Table) -> list[Problem]:
        columns = Columns(self.config.prompt, self.config.target, self.verifier.needs_target)
        return problems.read(table, columns, self.verifier.check)

    def split(self, held_out: int) -> tuple[list[Problem], list[Problem]]:
        """Its problems as (training, held-out). Raises ProblemError."""
        found = self.read()
        try:
            return problems.split(found, held_out)
        except ProblemError as error:
            raise ProblemError(f"{self.config.path}: {error}") from error

    def marked(self, found: Sequence[Problem]) -> list[Problem]:
        """The problems as of this set, with what a chat model is told."""
        briefing = self.verifier.briefing
        if self.config.system is not None:
            briefing = Briefing(self.config.system) if self.config.system else None
        return [replace(problem, set=self.name, briefing=briefing) for problem in found]


def open_problems(sets: Sequence[ProblemsConfig], verifier: VerifierConfig, held_out: int, seed: int) -> ProblemSet:
    """The problems of the sets, mixed by weight.

    Args:
        held_out: how many problems of each set are kept out of training, the same ones for every seed.

    Raises:
        ProblemError: a file that is missing, empty or broken, or too small to keep ``held_out`` of its problems out.
        VerifierError: a verifier that does not exist.
    """
    named_sets = _named(sets, verifier)
    split = {each.name: each.split(held_out) for each in named_sets if each.config.path not in MADE}
    kept = {problem.prompt for _, out in split.values() for problem in out}
    draws: list[Draw] = []
    out: list[Problem] = []
    for each in named_sets:
        if each.config.path in MADE:
            draws.append(_made(each, seed))
            out += each.marked(MADE[each.config.path](0, 0, held_out, side="held_out"))
        else:
            # two sets may share problems: none is trained on that another keeps out
            train = [problem for problem in split[each.name][0] if problem.prompt not in kept]
            if not train:
                raise ProblemError(f"{each.config.path}: all of its problems are held out of training by another set")
            draws.append(_from(train, seed))
            out += split[each.name][1]
    return ProblemSet(
        name=set_name(sets),
        draw=draws[0] if len(draws) == 1 else mixed(draws, [each.config.weight for each in named_sets], seed),
        held_out=tuple(out),
        verifiers={each.name: each.verifier for each in named_sets},
    )


def problems_to_solve(sets: Sequence[ProblemsConfig], verifier: VerifierConfig, held_out: int, seed: int) -> ProblemSet:
    """What an evaluation solves, as the held-out part of a set: everything in the files, or the part that training with
    that ``held_out`` keeps out; of problems that are made always that part. Raises as `open_problems` does."""
    if held_out:
        return open_problems(sets, verifier, held_out, seed)
    named_sets = _named(sets, verifier)
    found: list[Problem] = []
    for each in named_sets:
        made = MADE.get(each.config.path)
        found += each.read() if made is None else each.marked(made(0, 0, EVALUATED, side="held_out"))
    return ProblemSet(set_name(sets), lambda *_: [], tuple(found), {each.name: each.verifier for each in named_sets})


def mixed(draws: Sequence[Draw], weights: Sequence[float], seed: int) -> Draw:
    """Draws from several sets, each chosen with its weight; which ones at a step depends on (seed, step) alone."""
    shares = np.cumsum(weights) / np.sum(weights)

    def draw(step: int, count: int, skip: int) -> list[Problem]:
        generator = np.random.default_rng(np.random.SeedSequence([seed, step], spawn_key=STREAM))
        chosen = np.searchsorted(shares[:-1], generator.random(skip + count), side="right").tolist()
        before, now = Counter(chosen[:skip]), Counter(chosen[skip:])
        drawn = {each: iter(draws[each](step, now[each], before[each])) for each in now}
        return [next(drawn[each]) for each in chosen[skip:]]

    return draw


def read_tables(path: str) -> list[tables.Table]:
    """The tables of an fsspec path or glob."""
    found = []
    for name, content in open_files(path):
        match tables.file_format(name):
            case "parquet":
                found.append(tables.read_parquet(content, name))
            case "jsonl":
                found.append(tables.read_jsonl(as_text(content, name), name))
            case _:
                found.append(tables.read_csv(as_text(content, name), name))
    return found


def open_verifier(name: str, config: VerifierConfig) -> VerifierSpec:
    """The verifier of that name with the limits of ``config``; a user's file, at any fsspec path, is read now.

    Raises:
        VerifierError, PathError: there is none, or its file or function is missing.
    """
    text = ""
    if is_file(name):
        path, _ = split_name(name)
        [(_, opened), *more] = open_texts(path)
        if more:
            raise VerifierError(f"verifier {path}: matches more than one file")
        text = opened.read()
        check_source(name, text)
    elif name == MATH:
        require_math()
    spec = VerifierSpec(name, config.seconds, config.memory_mb, text)
    spec.require_known()
    return spec


def problem_set_name(path: str) -> str:
    """A short name, for people and in the names of metrics: the file's, without its endings."""
    stem = PurePosixPath(path.rpartition("://")[2]).name.split(".")[0].replace("*", "all")
    return re.sub(r"\W+", "-", stem).strip("-") or "problems"


def set_name(sets: Sequence[ProblemsConfig]) -> str:
    """A short name of several sets."""
    return "-".join(_names(sets))


def _names(sets: Sequence[ProblemsConfig]) -> list[str]:
    names: list[str] = []
    for each in sets:
        name = stem = problem_set_name(each.path)
        count = 1
        while name in names:
            count += 1
            name = f"{stem}-{count}"
        names.append(name)
    return names


def _named(sets: Sequence[ProblemsConfig], verifier: VerifierConfig) -> list[_Set]:
    return [
        _Set(config, name, open_verifier(named(config.verifier or verifier.name, config.path), verifier))
        for config, name in zip(sets, _names(sets), strict=True)
    ]


def _made(each: _Set, seed: int) -> Draw:
    make = MADE[each.config.path]
    return lambda step, count, skip: each.marked(make(seed, step, count, skip=skip))


def _from(train: Sequence[Problem], seed: int) -> Draw:
    return lambda step, count, skip: problems.draw(train, seed, step, count, skip)
