"""Tables of problems: the rows of open CSV, JSON Lines and Parquet files, each with its place in the file.

`name` is what messages call the file. Lines are counted from 1, as an editor does, and a row is named by its first; the
rows of a Parquet file are counted from 1.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, Literal

Format = Literal["csv", "jsonl", "parquet"]
_ENDINGS: dict[Format, tuple[str, ...]] = {"jsonl": (".jsonl", ".ndjson", ".json"), "parquet": (".parquet", ".pq")}
DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
SNIFFED_ROWS = 20
_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # of a character, as JSON writes it; two of them are one
_PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst", ".lz4", ".snappy")


class ProblemError(ValueError):
    """Problems that cannot be used: one line that names the file, the row in it, and what is wrong."""


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    number: int
    fields: dict[str, Any]  # what JSON can hold; CSV has text alone


@dataclass(frozen=True)
class Table:
    """The rows of one file."""

    name: str
    unit: Literal["line", "row"]
    header: list[str]  # the columns that there are
    rows: Iterable[Row]

    def at(self, number: int) -> str:
        """The beginning of a message about a row."""
        return f"{self.name}: {self.unit} {number}"


def file_format(name: str) -> Format:
    """The format that a file's ending names; CSV where it names none."""
    stem = name.lower()
    for packed in _PACKED:
        stem = stem.removesuffix(packed)
    return next((form for form, endings in _ENDINGS.items() if stem.endswith(endings)), "csv")


def read_csv(lines: Iterable[str], name: str) -> Table:
    """Columns are divided by commas, or by semicolons, tabs or bars where those fit. Blank lines and a byte order mark
    are passed over. Raises ProblemError, for a broken row when it is asked for."""
    text = _decoded(lines, name)
    delimiter = _delimiter(text)
    rows = _csv_rows(text, name, delimiter)
    _, header = next(rows, (0, None))
    if header is None:
        raise ProblemError(f"{name} is empty: expected a line with the names of the columns, then one problem a line")
    twice = next((column for column in header if header.count(column) > 1), None)
    if twice is not None:
        raise ProblemError(f"{name}: line 1: the column {short(twice)} is there more than once")
    return Table(name, "line", header, _even(rows, header, name, DELIMITERS[delimiter]))


def read_jsonl(lines: Iterable[str], name: str) -> Table:
    """One JSON object a line, or one list of objects; the columns are the keys of all. Raises ProblemError."""
    text = list(_without_mark(lines))
    if (listed := _listed(text)) is None:
        table = _of_objects(name, "line", _json_lines(text, name))
    else:
        table = _of_objects(name, "row", [Row(number, each) for number, each in enumerate(listed, 1)])
    if any(_HALF.search(line) for line in text):
        half = next((row.number for row in table.rows if not _is_text(row.fields)), None)
        if half is not None:
            raise ProblemError(f"{table.at(half)}: holds half of a character, such as \\ud83d alone; take it out")
    return table


def _of_objects(name: str, unit: Literal["line", "row"], rows: list[Row]) -> Table:
    return Table(name, unit, list(dict.fromkeys(column for row in rows for column in row.fields)), rows)


def _json_lines(text: Sequence[str], name: str) -> list[Row]:
    rows = []
    for number, line in enumerate(text, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = "nested too deeply" if isinstance(error, RecursionError) else str(error).partition(";")[0]
            if isinstance(error, json.JSONDecodeError):
                at = min(error.pos, len(line.rstrip("\r\n"))) + 1  # what is missing at its end is not in the next one
                reason = f"{error.msg.removesuffix(' at')} at column {at}"
            raise ProblemError(f"{name}: line {number}: not JSON: {reason}; one object a line is read") from error
        if not isinstance(fields, dict):
            raise ProblemError(
                f"{name}: line {number}: holds {_kind(fields)}, not an object; one object a line is read"
            )
        rows.append(Row(number, {column: plain(value) for column, value in fields.items()}))
    if not rows:
        raise ProblemError(f"{name} is empty: expected one JSON object a line")
    return rows


def _is_text(value: Any) -> bool:
    """Whether all of its texts can be written; half of a character cannot, and no tokenizer takes it."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _listed(text: Sequence[str]) -> list[dict[str, Any]] | None:
    """The objects of a JSON list over all lines; None where the text is none."""
    first = next((line for line in text if line.strip()), "")
    if not first.lstrip().startswith("["):
        return None
    try:
        found = json.loads("".join(text))
    except (ValueError, RecursionError):
        return None  # said of its line
    if not found or not all(isinstance(each, dict) for each in found):
        return None
    return [{column: plain(value) for column, value in each.items()} for each in found]


def read_parquet(content: BinaryIO, name: str) -> Table:
    """The rows of a Parquet file. Raises ProblemError."""
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(content)
        twice = next((column for column in table.column_names if table.column_names.count(column) > 1), None)
        if twice is not None:
            raise ProblemError(f"{name}: the column {short(twice)} is there more than once")
        found = table.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise ProblemError(
            f"{name}: not a Parquet file that can be read: {' '.join(str(error).split())[:200]}"
        ) from error
    rows = [
        Row(number, {column: plain(value) for column, value in fields.items()})
        for number, fields in enumerate(found, 1)
    ]
    return Table(name, "row", list(table.column_names), rows)


def inside(fields: Mapping[str, Any], path: str) -> Any:
    """The value of a column, or by a dotted path that within one: `question.text`, `messages.0.content`; None where
    there is none."""
    if path in fields:
        return fields[path]
    column, *below = path.split(".")
    value = fields.get(column)
    for key in below:
        match value:
            case dict():
                value = value.get(key)
            case list() if key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            case _:
                return None
    return value


def plain(value: Any) -> Any:
    """The value as JSON can hold it: numbers that are not finite are absent, dates and the like are text."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case list() | tuple():
            return [plain(each) for each in value]
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case _:
            return str(value)


def short(value: object) -> str:
    """A quotation that keeps a message one readable line, whatever the file holds."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _decoded(lines: Iterable[str], name: str) -> list[str]:
    text: list[str] = []
    try:
        text.extend(_without_mark(lines))
    except UnicodeDecodeError as error:
        # text is decoded in blocks, so the place may be some lines further on
        at = f"line {len(text) + 1} or later"
        raise ProblemError(f"{name}: {at}: not UTF-8 text ({error.reason}); save it as UTF-8") from error
    return text


def _delimiter(text: Sequence[str]) -> str:
    """The one by which the first rows are as wide as the header; a comma, where it is one of several."""
    widths = {each: _widths(text, each) for each in DELIMITERS}
    wide = [each for each, rows in widths.items() if rows and rows[0] > 1]
    even = [each for each in wide if len(set(widths[each])) == 1]
    # the first of equals is the comma
    return max(wide, key=lambda each: (each in even, each == "," and each in wide, widths[each][0]), default=",")


def _widths(text: Sequence[str], delimiter: str) -> list[int]:
    """How many fields the first rows have, none where they are broken."""
    try:
        rows = csv.reader(text, delimiter=delimiter, strict=True)
        return [len(row) for row in islice(filter(None, rows), SNIFFED_ROWS)]
    except csv.Error:
        return []


def _csv_rows(text: Sequence[str], name: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(first line, fields) of each row that is not blank."""
    reader = csv.reader(text, delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ProblemError(f"{name}: line {line}: broken row: {error} (is a quote left open?)") from error
        if any("\0" in value for value in row):
            raise ProblemError(f"{name}: line {line}: holds a NUL byte; is this a text file?")
        if row:
            yield line, row


def _without_mark(lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines):
        yield line.removeprefix("\ufeff") if number == 0 else line


def _even(rows: Iterable[tuple[int, list[str]]], header: list[str], name: str, delimiter: str) -> Iterator[Row]:
    for line, row in rows:
        if len(row) != len(header):
            raise ProblemError(
                f"{name}: line {line}: broken row: {len(row)} fields where the first line names {len(header)} columns "
                f"(text with a {delimiter} in it belongs in double quotes)"
            )
        yield Row(line, dict(zip(header, row, strict=True)))


def _kind(value: object) -> str:
    return {list: "a list", str: "text", type(None): "null"}.get(type(value), "a number")
