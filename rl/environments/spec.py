"""An environment and its limits as plain data, which travels with every call."""

import ast
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from rl.config import ENVIRONMENTS, is_made
from rl.environments.environment_config import EnvironmentConfig
from rl.sources import path_of

_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<name>[^:/\\]*))?")


class EnvironmentSpecError(ValueError):
    """An environment that cannot be used: one line that says why and what to do."""


@dataclass(frozen=True)
class EpisodeLimits:
    """What a class says of itself, by numbers in its body."""

    turns: int = 8  # of the policy's, in an episode
    seconds: float = 5.0  # for an action, as for reset and get_reward
    memory: int = 512  # MB that an episode holds, with all that it starts


LARGEST = EpisodeLimits(turns=1000, seconds=3600.0, memory=65536)
LEAST = EpisodeLimits(turns=1, seconds=0.01, memory=64)


class EnvironmentSpec(EnvironmentConfig):
    """An environment and its text: the machine that runs it may lack the file."""

    name: str = Field(min_length=1)
    text: str = ""  # of a user's file

    @model_validator(mode="before")
    @classmethod
    def _built_in(cls, given: Any) -> Any:
        """A built-in one has the text of its file."""
        if isinstance(given, dict) and given.get("name") in ENVIRONMENTS:
            return {**given, "text": path_of(f"rl.environments.built_in.{given['name']}").read_text("utf-8")}
        return given

    @property
    def built_in(self) -> bool:
        return self.name in ENVIRONMENTS

    @property
    def source(self) -> str:
        """The program that gives the rewards."""
        return self.text

    @property
    def file(self) -> str:
        """The name of its file, for messages."""
        return f"{self.name}.py" if self.built_in else Path(split_name(self.name)[0]).name

    @property
    def class_name(self) -> str:
        return self.name.capitalize() if self.built_in else split_name(self.name)[1]

    @property
    def limits(self) -> EpisodeLimits:
        """Raises EnvironmentSpecError."""
        return limits_of(self.text, self.file, self.class_name)


def split_name(name: str) -> tuple[str, str]:
    """The path and the class of a user's environment. Raises EnvironmentSpecError where one is missing."""
    found = _FILE.fullmatch(name)
    if found is None:
        near = get_close_matches(name, ENVIRONMENTS, 1)
        remedy = f"did you mean {near[0]}?" if near else "a class of yours is written guess.py:Guess"
        if is_made(name):
            remedy = f"{name} has one turn: --problems {name}, alone or in mix beside an environment"
        raise EnvironmentSpecError(f"environment {name!r} is none of {', '.join(ENVIRONMENTS)}; {remedy}")
    if not found["name"]:
        raise EnvironmentSpecError(f"environment {name!r}: name the class too, such as {found['path']}:Guess")
    return found["path"], found["name"]


@cache  # asked at every turn, and by threads at once, of which Python 3.11 parses files one at a time (gh-106905)
def limits_of(text: str, file: str, name: str) -> EpisodeLimits:
    """The limits of a class; nothing of the file is run. Raises EnvironmentSpecError."""
    try:
        tree = ast.parse(text, filename=file)
    except SyntaxError as error:
        raise EnvironmentSpecError(f"environment {file}:{error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise EnvironmentSpecError(f"environment {file}: not Python that can be read ({error})") from error
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if name not in classes:
        there = f"it has {', '.join(classes)}" if classes else "it has none"
        raise EnvironmentSpecError(f"environment {file}: no class {name!r} at its top level; {there}")
    written = dict(_written(name, classes, []))
    made = {
        **asdict(EpisodeLimits()),
        **{limit: _number(f"{file}: {name}", limit, written[limit]) for limit in written},
    }
    return EpisodeLimits(**made)


def _written(name: str, classes: dict[str, ast.ClassDef], above: list[str]) -> Iterator[tuple[str, ast.expr]]:
    """What a class and those that it is made of assign to limits, the last one of a limit being what counts."""
    for base in reversed(classes[name].bases):
        if isinstance(base, ast.Name) and base.id in classes and base.id not in above:
            yield from _written(base.id, classes, [*above, name])
    for node in classes[name].body:
        match node:
            case ast.Assign(targets=targets, value=value):
                pairs = [pair for target in targets for pair in _pairs(target, value)]
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                pairs = list(_pairs(target, value))
            case _:
                continue
        yield from ((target.id, value) for target, value in pairs if target.id in asdict(EpisodeLimits()))


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.Name, ast.expr]]:
    match target, value:
        case ast.Name(), _:
            yield target, value
        case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
            for one, of in zip(targets, values, strict=True):
                yield from _pairs(one, of)


def _number(where: str, limit: str, value: ast.expr) -> float:
    least, most, usual = (getattr(each, limit) for each in (LEAST, LARGEST, EpisodeLimits()))
    try:
        number = ast.literal_eval(value)
    except ValueError:
        number = None
    fits = type(number) is int or (type(number) is float and isinstance(usual, float))
    if fits and least <= number <= most:
        return float(number) if isinstance(usual, float) else number
    kind = "whole number" if isinstance(usual, int) else "number"
    raise EnvironmentSpecError(
        f"environment {where}.{limit} = {ast.unparse(value)[:60]}: write a {kind} from {least:g} to {most:g}, such as "
        f"{limit} = {usual:g}"
    )
