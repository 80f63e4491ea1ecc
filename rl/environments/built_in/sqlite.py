"""Environment `sqlite`: a question about tables, and a database of them that can be queried, not changed.

A problem's column `tables` is the SQL that makes them; its target is the answer: one value. The reward is 1 for that
value (numbers by value, texts without regard to case), else 0.
"""

import sqlite3
from typing import Any

MOST_ROWS = 20
MOST_STEPS = 1_000_000  # of SQLite's machine, for one query
READING = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
# what is not the same when the query is made again
CHANGING = frozenset(
    "random randomblob date time datetime julianday unixepoch strftime timediff current_date current_time "
    "current_timestamp".split()
)
MOST_BYTES = 100_000  # of a value, or of a query


class Sqlite:
    turns, seconds, memory = 8, 5.0, 256

    def reset(self, target: str, tables: str, **_: Any) -> str:
        self._wanted, self._right, self.over = target, False, False
        self._database = sqlite3.connect(":memory:")
        self._database.executescript(tables)
        made = self._database.execute("select sql from sqlite_master where type = 'table' order by name").fetchall()
        self._database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MOST_BYTES)
        self._database.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, MOST_BYTES)
        self._database.set_authorizer(_allowed)
        return "\n" + "\n".join(sql for (sql,) in made)

    def query(self, sql: str) -> str:
        """Query the tables.

        Args:
            sql: one SELECT of SQLite
        """
        left = [MOST_STEPS // 1000]

        def stop() -> bool:
            left[0] -= 1
            return left[0] < 0

        self._database.set_progress_handler(stop, 1000)
        try:
            found = self._database.execute(sql)
            rows = found.fetchmany(MOST_ROWS + 1)
        except sqlite3.OperationalError as error:
            raise ValueError("the query takes too long" if left[0] < 0 else str(error)) from None
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise ValueError(str(error)) from None
        if not rows:
            return "no rows"
        names = [column[0] for column in found.description]
        lines = [" | ".join(map(_written, row)) for row in (names, *rows[:MOST_ROWS])]
        return "\n".join([*lines, *(["more rows"] if len(rows) > MOST_ROWS else [])])

    def answer(self, value: str | float) -> str:
        """Give the answer, which ends the problem.

        Args:
            value: one number or text
        """
        self._right, self.over = same(str(value), self._wanted), True
        return "right" if self._right else "wrong"

    def get_reward(self) -> tuple[float, str]:
        return float(self._right), "right" if self._right else "wrong_value" if self.over else "no_answer"


def same(answer: str, wanted: str) -> bool:
    """Whether two values are one: as numbers if both are, else as texts without regard to case and outer blanks."""
    if answer.strip().casefold() == wanted.strip().casefold():
        return True  # a name may be one of those that float reads, such as Nan
    try:
        return float(answer) == float(wanted)
    except ValueError:
        return False


def _allowed(action: int, _first: str | None, name: str | None, *_: Any) -> int:
    reads = action in READING and not (action == sqlite3.SQLITE_FUNCTION and (name or "").lower() in CHANGING)
    return sqlite3.SQLITE_OK if reads else sqlite3.SQLITE_DENY


def _written(value: object) -> str:
    return "null" if value is None else str(value)
