"""Every completion of a step, kept for people: `rollouts/<step>.jsonl.gz` under the run's URI, a JSON object a line."""

import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BytesIO
from typing import Any

from infra.storage import place

Row = Mapping[str, Any]

# What is read of anybody's file. A thousand completions of 32,768 tokens, the most that one may have, are 134 MB at 4
# bytes a token, and one with its prompt, in JSON's escapes, less than 1 MB.
MOST_BYTES = 2**28
MOST_LINE = 2**23
LEAST_LINE = 2**10  # bytes that a line counts for at least: parsed it takes more
MOST_COLUMNS = 32


def write_rollouts(run_uri: str, step: int, rows: Iterable[Row], check: Callable[[], object] = lambda: None) -> None:
    """Keep the rows of a step; the same rows make the same file, and a step that is done again replaces its file.
    `check` is called when all but the writing is done: it raises where the run is another's, or away."""
    text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    data = gzip.compress(text.encode("utf-8", "replace"), compresslevel=1, mtime=0)
    check()
    place.write_bytes(_uri(run_uri, step), data)


def read_rollouts(run_uri: str, step: int) -> list[Row]:
    """The rows of a step; [] if there are none, and an empty one for what is no row. Raises ValueError for a damaged
    file, which it names, and for one that would take more memory than a step's completions can."""
    data = place.read(_uri(run_uri, step))
    try:
        return [] if data is None else [_row(line) for line in _lines(data)]
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise ValueError(f"{_uri(run_uri, step)} is damaged: {error}") from error


def _lines(data: bytes) -> Iterator[bytes]:
    """The lines of a file, decompressed one at a time: a few bytes may stand for any number. Raises ValueError."""
    left = MOST_BYTES
    with gzip.open(BytesIO(data)) as file:
        while line := file.readline(MOST_LINE + 1):
            left -= max(len(line), LEAST_LINE)
            if len(line) > MOST_LINE:
                raise ValueError(f"a line has more than {MOST_LINE} bytes, which no completion has")
            if left < 0:
                raise ValueError(f"it holds more than {MOST_BYTES} bytes, which no step's completions are")
            yield line


def _row(line: bytes) -> Row:
    """A line's numbers and texts by name; {} for any other line."""
    row = json.loads(line)
    if not isinstance(row, dict) or len(row) > MOST_COLUMNS:
        return {}
    return {} if any(isinstance(value, dict | list) for value in row.values()) else row


def kept_steps(run_uri: str) -> list[int]:
    """The steps whose completions are kept, rising."""
    found = (re.fullmatch(r"(\d+)\.jsonl\.gz", name) for name in place.names(place.join(run_uri, "rollouts")))
    return sorted(int(match[1]) for match in found if match)


def remove_rollouts_after(run_uri: str, step: int) -> None:
    """Remove the completions of later steps."""
    for kept in kept_steps(run_uri):
        if kept > step:
            place.remove_file(_uri(run_uri, kept))


def _uri(run_uri: str, step: int) -> str:
    return place.join(run_uri, "rollouts", f"{step}.jsonl.gz")
