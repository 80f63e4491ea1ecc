"""Examples to learn from without reward: demonstrations, and pairs of a chosen and a rejected completion.

A prompt or a completion is text, or a chat: a list of turns `{"role": ..., "content": ...}`. Earlier turns of a chat
come before the prompt as in its template; a completion is the last one.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl.problems.rows import PROMPTS, column
from rl.problems.tables import ProblemError, Row, Table, inside, short
from rl.records import Instructions, Problem

# names of columns that are looked for where none is given; the first wins
PROMPT = ("prompt", "question", "instruction", *(name for name in PROMPTS if name not in ("prompt", "question")))
COMPLETION = ("completion", "response", "answer", "output")
CHOSEN, REJECTED = ("chosen",), ("rejected",)
CHAT = "messages"


@dataclass(frozen=True)
class Example(Problem):
    """A prompt with given completions; `target` is the first of them."""

    completions: tuple[str, ...] = ()  # [G]: one that is shown, or the chosen and the rejected one


@dataclass(frozen=True)
class ExampleColumns:
    """Which columns of a table hold an example; None looks for a usual name."""

    prompt: str | None
    completions: tuple[tuple[str, str | None, tuple[str, ...]], ...]  # option, column, usual names


def read_examples(table: Table, columns: ExampleColumns) -> list[Example]:
    """The examples of a table. Raises ProblemError at the first thing wrong."""
    named = [name for _, name, _ in columns.completions if name is not None]
    if len(columns.completions) == 1 and not named and columns.prompt is None and CHAT in table.header:
        found = [_of_chats(table, row, None, (CHAT,)) for row in table.rows]
    else:
        answers = tuple(column(table, name, known, f"--problems.{of}") for of, name, known in columns.completions)
        prompt = _prompt(table, columns.prompt, answers)
        found = [_of_chats(table, row, prompt, answers) for row in table.rows]
    if not found:
        raise ProblemError(f"{table.name} has column names but no example below them")
    return found


def with_words(examples: Sequence[Example], system: str | None, template: str | None) -> list[Example]:
    """The examples with a system prompt where they have none of their own, and through this template."""
    if system is None and template is None:
        return list(examples)
    return [replace(each, instructions=_words(each.instructions, system, template)) for each in examples]


def _words(own: Instructions | None, system: str | None, template: str | None) -> Instructions:
    own = own or Instructions("")
    return replace(own, system=own.system or system or "", template=template, required=bool(system))


def _prompt(table: Table, named: str | None, answers: Sequence[str]) -> str | None:
    """The column of the prompt; None where the completions are whole chats, which begin with it."""
    if named is None and len(answers) > 1 and not set(PROMPT) & set(table.header):
        first = next(iter(table.rows), None)
        if first is not None and isinstance(inside(first.fields, answers[0]), list):
            return None
    return column(table, named, PROMPT, "--problems.prompt")


def _of_chats(table: Table, row: Row, prompt: str | None, answers: Sequence[str]) -> Example:
    place = table.at(row.number)
    before = [] if prompt is None else _turns(place, prompt, inside(row.fields, prompt), "user")
    chats = [[*before, *_turns(place, name, inside(row.fields, name), "assistant")] for name in answers]
    for name, turns in zip(answers, chats, strict=True):
        if turns[-1][0] != "assistant":
            raise ProblemError(f"{place}: {name} ends with a turn of {turns[-1][0]!r}; a completion is the assistant's")
    if any(turns[:-1] != chats[0][:-1] for turns in chats):
        raise ProblemError(f"{place}: {' and '.join(answers)} do not answer the same prompt")
    completions = tuple(turns[-1][1] for turns in chats)
    if len(set(map(str.strip, completions))) < len(completions):
        raise ProblemError(
            f"{place}: {' and '.join(answers)} are the same, {short(completions[0])}: nothing to prefer; leave it out"
        )
    question, instructions = _asked(place, answers[0] if prompt is None else prompt, chats[0][:-1])
    source = f"{PurePosixPath(table.name).name}:{row.number}"
    return Example(question, completions[0], source, instructions=instructions, completions=completions)


def _turns(place: str, name: str, value: Any, role: str) -> list[tuple[str, str]]:
    """(role, words) of each turn of a chat; text is one turn of ``role``."""
    given = [{"role": role, "content": value}] if isinstance(value, str) else value
    if value is None or not given:
        raise ProblemError(f"{place}: {name} is empty")
    if not isinstance(given, list):
        raise ProblemError(f"{place}: {name} is {short(value)}, neither text nor a list of turns")
    found = []
    for turn in given:
        said = turn if isinstance(turn, dict) else {}
        of, words = said.get("role"), said.get("content")
        if of not in ("system", "user", "assistant") or not isinstance(words, str):
            raise ProblemError(
                f"{place}: {name} has a turn {short(turn)}; each has a role (system, user or assistant) and content, "
                "which is text"
            )
        if not words.strip():
            raise ProblemError(f"{place}: {name} is empty" if len(given) == 1 else f"{place}: {name} has an empty turn")
        found.append((str(of), words))
    return found


def _asked(place: str, name: str, turns: list[tuple[str, str]]) -> tuple[str, Instructions | None]:
    """The last question, and what was said before it."""
    system = turns[0][1] if turns and turns[0][0] == "system" else ""
    said = turns[1:] if system else turns
    roles = [role for role, _ in said]
    if len(said) % 2 == 0 or roles != ["user", "assistant"] * (len(said) // 2) + ["user"]:
        raise ProblemError(f"{place}: {name}: expected turns of user and assistant one after the other, user first")
    words = [content for _, content in said]
    examples = tuple(zip(words[:-1:2], words[1::2], strict=True))
    earlier = Instructions(system, examples, required=True) if system or examples else None
    return words[-1].strip(), earlier


class ExamplesConfig(BaseModel):
    """A file of examples to learn from."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shorthand: ClassVar[str] = "path"

    path: str | None = Field(
        None, min_length=1, description="a path, fsspec URI or glob of CSV, JSON Lines or Parquet files"
    )
    prompt: str | None = Field(None, min_length=1, description="column of the prompt; null looks for a usual name")
    system: str | None = Field(None, description="system prompt, for a model with a chat template")
    template: str | None = Field(
        None,
        description="the whole prompt in place of the model's chat template, with {prompt} and optionally {system} in "
        "it",
    )

    @property
    @abstractmethod
    def columns(self) -> ExampleColumns:
        """Where its examples are."""

    @model_validator(mode="after")
    def _places(self) -> Self:
        if self.template is not None and "{prompt}" not in self.template:
            raise ValueError("template: has no {prompt} in it, so that every prompt would be the same")
        if self.template is not None and self.system and "{system}" not in self.template:
            raise ValueError("system: is given, but template has no {system} in it; leave one of them out")
        return self


class DemonstrationsConfig(ExamplesConfig):
    """Demonstrations: prompts with the completion to be learned, or chats in the column `messages`."""

    completion: str | None = Field(
        None, min_length=1, description="column of the completion; null looks for a usual name"
    )

    @property
    def columns(self) -> ExampleColumns:
        return ExampleColumns(self.prompt, (("completion", self.completion, COMPLETION),))


class PairsConfig(ExamplesConfig):
    """Prompts with a chosen and a rejected completion."""

    chosen: str | None = Field(None, min_length=1, description="column of the better completion; null: chosen")
    rejected: str | None = Field(None, min_length=1, description="column of the worse one; null: rejected")

    @property
    def columns(self) -> ExampleColumns:
        return ExampleColumns(self.prompt, (("chosen", self.chosen, CHOSEN), ("rejected", self.rejected, REJECTED)))
