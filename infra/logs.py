"""Log files that do not grow for ever."""

import time
from contextlib import suppress
from pathlib import Path

LARGEST = 10_000_000  # bytes; a larger one is set aside when its next writer begins
OLDEST_DAYS = 30.0  # without a line, after which a log is removed


def log_at(path: Path) -> Path:
    """`path`, in a folder that is there: what it holds is set aside as `<name>.1` if it is large, and logs beside it
    that nobody has written to for long are removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):  # another process may do the same just now
        if path.exists() and path.stat().st_size > LARGEST:
            path.replace(path.with_name(f"{path.name}.1"))
        oldest = time.time() - OLDEST_DAYS * 86400
        for other in path.parent.glob("*.log*"):
            if other.is_file() and other.stat().st_mtime < oldest:
                other.unlink()
    return path
