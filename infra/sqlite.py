"""Whether a SQLite file of this machine is whole: a disk that was full or a power cut leaves one that is not."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


class DamagedDatabaseError(ValueError):
    """One line that names the file, what SQLite says of it and what to do."""


@contextmanager
def report_corruption(file: Path | None, remedy: str) -> Iterator[None]:
    """Raises `DamagedDatabaseError` in the place of any error inside, where the file is damaged: a library says that by
    exceptions of its own, a server only in its log."""
    try:
        yield
    except Exception as error:
        if why := damage(file):
            raise DamagedDatabaseError(f"{file} is damaged ({why}): {remedy}") from error
        raise


def file_of(uri: str) -> Path | None:
    """The file of a database named as SQLAlchemy does, None where it is no SQLite file."""
    return Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None


def damage(file: Path | None) -> str | None:
    """What SQLite says of a damaged file; None of a whole one, of none, and of one that it cannot read just now."""
    if file is None or not file.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as database:
            ((said,),) = database.execute("PRAGMA quick_check(1)").fetchall()
    except sqlite3.OperationalError:
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if said == "ok" else " ".join(str(said).split())
