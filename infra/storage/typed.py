"""Small JSON files of a known shape. What is read may be cut off, edited, or anybody's."""

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from infra.errors import first_fault
from infra.storage import place

T = TypeVar("T")


class DamagedError(ValueError):
    """A file is not what was written there: one line that names it, what is wrong and what to do."""


def read_typed(uri: str | Path, kind: type[T], remedy: str) -> T | None:
    """The file's content as a `kind`, None without a file. `remedy`: what to do about a damaged one. Raises
    DamagedError."""
    content = place.read(str(uri))
    return None if content is None else parse_typed(content, kind, str(uri), remedy)


def parse_typed(content: bytes, kind: type[T], name: str, remedy: str) -> T:
    """As `read_typed`, of a file's content."""
    try:
        return TypeAdapter(kind).validate_json(content)
    except ValidationError as error:
        what = " ".join(": ".join(filter(None, first_fault(error))).split())
        raise DamagedError(f"{name} is damaged ({what}); {remedy}") from error
