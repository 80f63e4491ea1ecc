"""A problem set: what to train on, step by step, and what is kept out of training."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import PurePosixPath

from infra.storage.files import PathError, as_text, open_files, open_texts
from rl.config import AUTO, MADE, ProblemsConfig, VerifierConfig
from rl.problems import rows, tables
from rl.problems.made import stream_of
from rl.problems.rows import Columns, normalized
from rl.problems.tables import ProblemError
from rl.records import Instructions, Problem
from rl.verifiers.spec import VerifierError, VerifierSpec, check_source, is_file, named, split_name
from tasks.mixture import Draw, Mixture, Source, streams
from tasks.trained_on import TrainedOn, prompts_of, seen_among

LONGEST = 256  # problems of the files that are looked at for their length before a run


@dataclass(frozen=True)
class ProblemSet:
    """Problems of step k are a function of (seed, k) alone. A file's come in epochs: all of them once, in a random
    order, before any comes again."""

    name: str
    draw: Draw
    held_out: tuple[Problem, ...]  # shares no prompt with what ``draw`` gives, case and blanks aside
    verifiers: Mapping[str, VerifierSpec]  # by the name of the set that a problem is of

    files: Mapping[str, TrainedOn] = field(default_factory=dict)  # by set: what its files give to ``draw``
    drawn: tuple[Problem, ...] = ()  # the problems of its files that ``draw`` gives
    spared: int = 0  # problems of its files' training parts that are not drawn, as a prompt like theirs is held out
    left_out: int = 0  # problems that an evaluation passes over, as the policy was trained on them

    @property
    def trained(self) -> frozenset[bytes]:
        """What tells the prompts of its files that ``draw`` gives, see `tasks.trained_on.seen_among`."""
        return prompts_of(self.files.values())

    def longest(self) -> list[Problem]:
        """What no policy may be too short for: the held-out problems, some of the first step, and those of the files
        with the most characters. Tokens are not counted, as that takes the tokenizer of the policy on its worker; the
        longest by characters are nearly the longest by tokens, so that of many of them one is."""
        return [*self.some(), *longest(self.drawn)]

    def some(self) -> list[Problem]:
        """A few problems to look at."""
        return [*self.held_out, *self.draw(0, 64, 0)]


def longest(given: Sequence[Problem]) -> list[Problem]:
    """Those with the most characters."""
    return sorted(given, key=lambda problem: len(problem.prompt), reverse=True)[:LONGEST]


@dataclass(frozen=True)
class _Set:
    """One of the sets that are mixed."""

    config: ProblemsConfig
    name: str
    verifier: VerifierSpec
    options: str  # how the names of its options begin
    by_default: bool = False  # nobody named the verifier

    def read(self) -> list[Problem]:
        """All problems of its files. Raises ProblemError."""
        try:
            found = [problem for table in read_tables(self.config.path) for problem in self._problems(table)]
        except PathError as error:
            if near := get_close_matches(self.config.path, MADE, n=1):
                raise PathError(f"{error}; did you mean {near[0]}?") from error
            raise
        if not found:
            raise ProblemError(f"{self.config.path}: no problems")
        return self.marked(found)

    def _problems(self, table: tables.Table) -> list[Problem]:
        columns = Columns(self.config.prompt, self.config.target, self.verifier.needs_target, self.options)
        try:
            return rows.read(table, columns, self.verifier.check)
        except ProblemError as error:
            if not self.by_default:
                raise
            others = "others: --verifier gsm8k, math, my_reward.py:reward"
            raise ProblemError(f"{error} (verifier {self.verifier.name}, as none was named; {others})") from error

    def split(self, held_out: int | None) -> tuple[list[Problem], list[Problem]]:
        """Its problems as (training, held-out). Raises ProblemError."""
        found = self.read()
        try:
            return rows.split(found, held_out)
        except ProblemError as error:
            raise ProblemError(f"{self.config.path}: {error}") from error

    def made(self, held_out: int | None) -> list[Problem]:
        """So many problems of the side that is never trained on, where it is made in code."""
        count = rows.HELD_OUT if held_out is None else held_out
        return self.marked(list(islice(stream_of(self.config.path)(0, 0, "held_out"), count)))

    def marked(self, found: Sequence[Problem]) -> list[Problem]:
        """The problems as of this set, with what a chat model is told."""
        instructions = self.verifier.instructions
        if self.config.system is not None:
            instructions = Instructions(self.config.system, required=True) if self.config.system else None
        if self.config.template is not None:
            instructions = Instructions(instructions.system if instructions else "", template=self.config.template)
        return [replace(problem, set=self.name, instructions=instructions) for problem in found]


def open_problems(
    sets: Sequence[ProblemsConfig], verifier: VerifierConfig, held_out: int | None, seed: int, prompts: int = 1
) -> ProblemSet:
    """The problems of the sets, mixed by weight.

    Args:
        held_out: how many problems of each set are kept out of training, the same ones for every seed; None: see
            `rl.problems.rows.split`.
        prompts: how many a step draws at first; whatever it draws after these replaces some of them.

    Raises:
        ProblemError: a file that is missing, empty or broken, or too small to keep ``held_out`` of its problems out.
        VerifierError: a verifier that does not exist.
    """
    named_sets = _named(sets, verifier)
    split = {each.name: each.split(held_out) for each in named_sets if each.config.path not in MADE}
    made = {each.name: each.made(held_out) for each in named_sets if each.config.path in MADE}
    kept_out = {each.name: made[each.name] if each.name in made else split[each.name][1] for each in named_sets}
    kept = {normalized(problem.prompt) for problems in kept_out.values() for problem in problems}
    sources: list[Source] = []
    out: list[Problem] = []
    files: dict[str, TrainedOn] = {}
    drawn: list[Problem] = []
    spared = 0
    for each, stream in zip(named_sets, streams(seed, len(named_sets)), strict=True):
        if each.config.path in MADE:
            sources.append(_made(each, stream, kept))
        else:
            # sets may share problems, and a file may have one twice, with another blank in it
            train = [problem for problem in split[each.name][0] if normalized(problem.prompt) not in kept]
            if not train:
                raise ProblemError(
                    f"{each.config.path}: nothing is left to train on: all of its prompts are held out, by it or by "
                    "another set (case and blanks do not count); choose a smaller --held_out"
                )
            sources.append(_from(train, stream, each.config.weight))
            files[each.name] = TrainedOn.of(split[each.name], train)
            drawn += train
            spared += len(split[each.name][0]) - len(train)
        out += kept_out[each.name]
    return ProblemSet(
        name=set_name(sets),
        draw=Mixture(sources, seed, prompts),
        held_out=tuple(out),
        verifiers={each.name: each.verifier for each in named_sets},
        files=files,
        drawn=tuple(drawn),
        spared=spared,
    )


def problems_to_solve(
    sets: Sequence[ProblemsConfig],
    verifier: VerifierConfig,
    held_out: int | None,
    seed: int,
    trained: Set[bytes] = frozenset(),
    made: int | None = None,
) -> ProblemSet:
    """What an evaluation solves, as the held-out part of a set.

    Args:
        held_out: the part of each set that training with that ``held_out`` keeps out; 0 for everything in the files;
            None for everything but problems that ``trained`` tells, case and blanks aside, in the order of a split.
        made: how many problems are taken where they are made in code, always of the side that is never trained on.

    Raises:
        ProblemError: as `open_problems`, or all of the problems are among ``trained``.
    """
    if held_out:
        return open_problems(sets, verifier, held_out, seed)
    known = trained if held_out is None else frozenset()
    named_sets = _named(sets, verifier)
    whole = {each.name: each.made(made) if each.config.path in MADE else each.read() for each in named_sets}
    seen = seen_among((problem for group in whole.values() for problem in group), known)
    found: list[Problem] = []
    left_out = 0
    for each in named_sets:
        given = whole[each.name]
        # in the order of a split: whatever was trained on, the first ones are the same
        if held_out is None and each.config.path not in MADE:
            given, _ = rows.split(given, 0)
        unseen = [problem for problem in given if normalized(problem.prompt) not in seen]
        found += unseen
        left_out += len(given) - len(unseen)
    if not found:
        raise ProblemError(
            f"{set_name(sets)}: the policy was trained on all {left_out} problems; give others by --problems, or "
            "--held_out 0 to evaluate on those"
        )
    verifiers = {each.name: each.verifier for each in named_sets}
    return ProblemSet(set_name(sets), lambda *_: [], tuple(found), verifiers, left_out=left_out)


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
    spec = VerifierSpec(
        name,
        config.seconds,
        config.memory_mb,
        text,
        config.sandbox,
        config.network,
        tuple(config.env),
        config.truncated,
        config.timeout_reward,
    )
    spec.require_known()
    return spec


def problem_set_name(path: str) -> str:
    """A short name, for people and in the names of metrics: the file's, without its endings."""
    stem = PurePosixPath(path.rpartition("://")[2]).name.split(".")[0].replace("*", "all")
    return re.sub(r"\W+", "-", stem).strip("-") or "problems"


def set_name(sets: Sequence[ProblemsConfig]) -> str:
    """A short name of several sets."""
    return "-".join(set_names(sets))


def set_names(sets: Sequence[ProblemsConfig]) -> list[str]:
    """A short name of each, no two the same."""
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
    options = ["--problems.", *(f"mix[{at}]." for at in range(len(sets) - 1))]
    found = []
    for config, name, dotted in zip(sets, set_names(sets), options, strict=True):
        wanted = config.verifier or verifier.name
        found.append(_Set(config, name, open_verifier(named(wanted, config.path), verifier), dotted, wanted == AUTO))
    return found


def _made(each: _Set, stream: int, kept: Set[str]) -> Source:
    make = stream_of(each.config.path)

    def draw(step: int, _position: int, _own: int, count: int, skip: int) -> list[Problem]:
        free = (problem for problem in make(stream, step, "train") if normalized(problem.prompt) not in kept)
        return each.marked(list(islice(free, skip, skip + count)))

    return Source(each.config.weight, draw)


def _from(train: Sequence[Problem], stream: int, weight: float) -> Source:
    def draw(step: int, position: int, own: int, count: int, skip: int) -> list[Problem]:
        return rows.draw(train, stream, step, position, own, count, skip)

    return Source(weight, draw)
