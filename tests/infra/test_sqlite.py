"""Databases that are whole, and others."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from infra.sqlite import DamagedDatabaseError, damage, file_of, report_corruption


@pytest.fixture
def database(tmp_path: Path) -> Path:
    file = tmp_path / "a b?.db"
    with closing(sqlite3.connect(file)) as made, made:
        made.execute("CREATE TABLE runs (name TEXT)")
        made.executemany("INSERT INTO runs VALUES (?)", [("x" * 1000,) for _ in range(200)])
    return file


def test_only_a_damaged_file_is_said_to_be_one(database: Path) -> None:
    assert damage(database) is None
    assert damage(database.parent / "none.db") is None
    assert not (database.parent / "none.db").exists()
    with pytest.raises(KeyError), report_corruption(database, "do this"):
        raise KeyError("something else")
    whole = database.read_bytes()
    for broken in (b"no database" * 1000, whole[:8192], whole[:4096] + b"x" * (len(whole) - 4096)):
        database.write_bytes(broken)
        said = damage(database)
        assert said
        with pytest.raises(DamagedDatabaseError) as error, report_corruption(database, "do this"):
            raise KeyError("a library's words")
        assert str(error.value) == f"{database} is damaged ({said}): do this"


def test_the_file_of_an_address() -> None:
    assert file_of("sqlite:////home/mlflow.db") == Path("/home/mlflow.db")
    assert file_of("http://127.0.0.1:5000") is None
