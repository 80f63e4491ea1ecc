"""Every completion of a step, kept for people: `rollouts/<step>.jsonl.gz` under the run's URI, a JSON object a line."""

import gzip
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from infra.storage import place

Row = Mapping[str, Any]


def write_rollouts(run_uri: str, step: int, rows: Iterable[Row]) -> None:
    """Keep the rows of a step; the same rows make the same file, and a step that is done again replaces its file."""
    text = "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    place.write_bytes(_uri(run_uri, step), gzip.compress(text.encode("utf-8", "replace"), compresslevel=1, mtime=0))


def read_rollouts(run_uri: str, step: int) -> list[Row]:
    """The rows of a step; [] if there are none. Raises ValueError for a damaged file, which it names."""
    data = place.read(_uri(run_uri, step))
    try:
        return [] if data is None else [json.loads(line) for line in gzip.decompress(data).splitlines()]
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{_uri(run_uri, step)} is damaged: {error}") from error


def kept_steps(run_uri: str) -> list[int]:
    """The steps whose completions are kept, rising."""
    found = (re.fullmatch(r"(\d+)\.jsonl\.gz", name) for name in place.names(place.join(run_uri, "rollouts")))
    return sorted(int(match[1]) for match in found if match)


def remove_rollouts_after(run_uri: str, step: int) -> None:
    """Remove what is kept of later steps."""
    for kept in kept_steps(run_uri):
        if kept > step:
            place.remove_file(_uri(run_uri, kept))


def _uri(run_uri: str, step: int) -> str:
    return place.join(run_uri, "rollouts", f"{step}.jsonl.gz")
