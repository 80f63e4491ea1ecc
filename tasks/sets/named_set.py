"""One set of problems among those that are mixed: its name, its verifier, and what is read of its files."""

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import NoReturn

from infra.security.secrets import masked
from infra.storage import store
from infra.storage.files import PathError, as_text, open_files, open_texts
from infra.storage.manifest import StoreError
from rl.config import AUTO, ENVIRONMENTS, MADE, PLAYED, REWARD_MODEL, ProblemsConfig, VerifierConfig, is_made
from rl.environments.environment_config import EnvironmentConfig
from rl.environments.spec import EnvironmentSpec, EnvironmentSpecError
from rl.environments.spec import split_name as environment_path
from rl.problems import rows, tables
from rl.problems.made import stream_of
from rl.problems.rows import Columns
from rl.problems.tables import ProblemError
from rl.records import Instructions, Problem
from rl.verifiers.contract import accept
from rl.verifiers.spec import VerifierError, VerifierSpec, check_source, is_file, judged_by, split_name
from tasks.calls.reward import WRITE_ANEW

LARGEST = 2**20  # bytes of a verifier's source, which travels with every call
_OF_THE_HUB = re.compile(r"[\w-][\w.-]*/(?!.*\.csv)[\w.-]+")  # openai/gsm8k


@dataclass(frozen=True)
class NamedSet:
    """One of the sets that are mixed."""

    config: ProblemsConfig
    name: str
    verifier: VerifierSpec | None  # None: it is played, and an environment gives the rewards
    options: str  # how the names of its options begin
    by_default: bool = False  # nobody named the verifier

    def read(self) -> list[Problem]:
        """All problems of its files. Raises ProblemError."""
        given = as_typed(self.config.path)
        try:
            found = [problem for table in read_tables(self.config.path) for problem in self._problems(table)]
        except PathError as error:
            words = str(error).replace(self.config.path, given)
            if words.endswith("?"):
                pass  # a file is near
            elif near := get_close_matches(given, MADE, n=1):
                words += f"; did you mean {near[0]}?"
            elif _OF_THE_HUB.fullmatch(given) and tables.file_format(given) == "csv":
                words += f"; of a data set on the hub name its files, such as 'hf://datasets/{given}/**/train*.parquet'"
            raise PathError(words) from error
        except ProblemError as error:
            raise ProblemError(str(error).replace(self.config.path, given)) from error
        if not found:
            raise ProblemError(f"{given}: no problems")
        return self.marked(found)

    def _problems(self, table: tables.Table) -> list[Problem]:
        judge = self.verifier
        needs_target = judge is not None and judge.needs_target
        columns = Columns(self.config.prompt, self.config.target, needs_target, self.options, all_further=judge is None)
        try:
            return rows.read(table, columns, accept if judge is None else judge.declared.check)
        except ProblemError as error:
            if judge is None or not self.by_default:
                raise
            others = "others: --verifier gsm8k, math, my_reward.py:reward"
            raise ProblemError(f"{error} (verifier {judge.name}, as none was named; {others})") from error

    def split(self, held_out: int | None) -> tuple[list[Problem], list[Problem]]:
        """Its problems as (training, held-out). Raises ProblemError."""
        found = self.read()
        try:
            return rows.split(found, held_out)
        except ProblemError as error:
            raise ProblemError(f"{self.config.path}: {error}") from error

    def made(self, held_out: int | None, others: Set[str] = frozenset()) -> list[Problem]:
        """``held_out`` problems of a set that is made in code, from the side that is never trained on, none of whose
        normalized prompts is among ``others``."""
        usual = rows.HELD_OUT_PLAYED if self.config.path in PLAYED else rows.HELD_OUT
        return self.marked(_held_out(self.config.path, usual if held_out is None else held_out, frozenset(others)))

    def marked(self, found: Sequence[Problem]) -> list[Problem]:
        """The problems with this set's name and its instructions (system prompt, template)."""
        instructions = None if self.verifier is None else self.verifier.declared.instructions
        if self.config.system is not None:
            instructions = Instructions(self.config.system, required=True) if self.config.system else None
        if self.config.template is not None:
            instructions = Instructions(instructions.system if instructions else "", template=self.config.template)
        played = self.verifier is None
        return [replace(problem, set=self.name, instructions=instructions, played=played) for problem in found]


@lru_cache(8)  # 3,000 problems are made to find 200 of this side
def _held_out(path: str, count: int, others: Set[str]) -> tuple[Problem, ...]:
    made = stream_of(path)(0, 0, "held_out")
    return tuple(islice((each for each in made if rows.normalized(each.prompt) not in others), count))


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


def as_typed(path: str) -> str:
    """A path below the working directory as one types it there: a run has whole ones."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path


def open_verifier(name: str, config: VerifierConfig) -> VerifierSpec:
    """The verifier of that name with the limits of ``config``; a user's file, at any fsspec path, is read now.

    Raises:
        VerifierError, PathError: there is none, or its file or function is missing.
    """
    text = ""
    if is_file(name):
        text = _source("verifier", split_name(name)[0])
        check_source(name, text)
    spec = VerifierSpec.model_validate(dict(config) | {"name": name, "text": text})
    spec.require_known()
    if spec.rewards is None:
        return spec
    uri, _ = spec.rewards
    try:
        return spec.model_copy(update={"digest": store.read_manifest(uri).digest})
    except StoreError as error:
        raise VerifierError(f"verifier {REWARD_MODEL}{uri}: there is no reward model: {error}; {WRITE_ANEW}") from error


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


def open_environment(config: EnvironmentConfig) -> EnvironmentSpec | None:
    """The environment that is acted on, if there is one; a user's file, at any fsspec path, is read now.

    Raises:
        EnvironmentSpecError, PathError: there is none, or its file or class is missing, or its limits are none.
    """
    if config.name is None:
        return None
    text = ""
    if config.name not in ENVIRONMENTS:
        text = _source("environment", environment_path(config.name)[0])
    spec = EnvironmentSpec.model_validate(dict(config) | {"text": text})
    assert spec.limits
    return spec


def _source(what: str, path: str) -> str:
    """The text of a user's file. Raises PathError."""
    try:
        [(_, opened), *more] = open_texts(path, LARGEST)
    except PathError as error:
        raise PathError(str(error).replace(path, as_typed(path))) from error
    if more:
        raise PathError(f"{what} {path}: matches more than one file")
    return opened.read()


def named_sets(
    sets: Sequence[ProblemsConfig], verifier: VerifierConfig, environment: EnvironmentConfig | None
) -> list[NamedSet]:
    """The sets as they are mixed: each by a name of its own, with its verifier. Where an environment is acted on, only
    those have one that are `judged`.

    Raises:
        VerifierError, PathError: as `open_verifier`, or ``verifier`` names one that judges none of the sets.
        EnvironmentSpecError: problems that the ``environment`` is not for, or an environment's without it.
    """
    options = ["--problems.", *(f"mix[{at}]." for at in range(len(sets) - 1))]
    acted_on = None if environment is None else environment.name
    played = [acted_on is not None and not each.judged for each in sets]
    for each, is_played in zip(sets, played, strict=True):
        anothers = acted_on in PLAYED and each.path != acted_on
        if each.path in PLAYED and (anothers or not is_played):
            _refuse(each, acted_on)
    judges = [judged_by(each, verifier) for each in sets]
    left = [each.path for each in sets if each.verifier is None and is_made(each.path)]
    if verifier.name not in (AUTO, *judges) and left:
        raise VerifierError(
            f"verifier {verifier.name!r} judges none of the problems: {left[0]} is made in code and has a verifier of "
            f"its own; where {verifier.name} is meant, give --problems.verifier {verifier.name} (in mix: verifier)"
        )
    found = []
    for config, name, judge, dotted, is_played in zip(sets, set_names(sets), judges, options, played, strict=True):
        by_default = not is_played and (config.verifier or verifier.name) == AUTO
        opened = None if is_played else open_verifier(judge, verifier)
        found.append(NamedSet(config, name, opened, dotted, by_default))
    return found


def _refuse(problems: ProblemsConfig, environment: str | None) -> NoReturn:
    """Of an environment's own problems."""
    if environment is None:
        raise EnvironmentSpecError(
            f"problems {problems.path}: are of an environment; give --environment {problems.path}"
        )
    if problems.judged:
        raise EnvironmentSpecError(_two_judges(problems, environment))
    raise EnvironmentSpecError(f"problems {problems.path}: are not those of the environment {environment}")


def refuse_unplayed(sets: Sequence[ProblemsConfig], environment: EnvironmentConfig) -> None:
    """Raise EnvironmentSpecError where an environment is named that none of the sets is played with, or further ones
    alone are, while nobody has named the first."""
    first = sets[0]
    unnamed = first == ProblemsConfig() and environment.name not in PLAYED
    if environment.name is None or not (unnamed or all(each.judged for each in sets)):
        return
    if first.verifier is not None:
        raise EnvironmentSpecError(_two_judges(first, environment.name))
    raise EnvironmentSpecError(
        f"environment {environment.name!r}: name its problems by --problems; {first.path} has a verifier of its own"
    )


def _two_judges(problems: ProblemsConfig, environment: str) -> str:
    return f"problems.verifier {problems.verifier!r}: the environment {environment} gives the reward; leave one out"


def judges(programs: Mapping[str, VerifierSpec | EnvironmentSpec]) -> str:
    """What judges these sets, for people: 'gsm8k', or 'gsm8k (train, test), environment guess (guess)'."""
    sets: dict[str, list[str]] = {}
    for name, spec in programs.items():
        kind = "environment " if isinstance(spec, EnvironmentSpec) else ""
        sets.setdefault(kind + masked(spec.name), []).append(name)
    return ", ".join(name if len(sets) == 1 else f"{name} ({', '.join(of)})" for name, of in sets.items())
