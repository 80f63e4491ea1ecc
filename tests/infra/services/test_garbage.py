"""A server with SQLite whose event loop collects garbage waits for itself; one whose garbage is collected apart does
not."""

import subprocess
import sys
from pathlib import Path

import pytest

SERVER = """
import contextlib, gc, sqlite3, sys, threading, time
from infra.services.garbage import collect_apart

gc.disable()
first, second = (sqlite3.connect(sys.argv[1], timeout=2, isolation_level=None, check_same_thread=False) for _ in "ab")
first.executescript("PRAGMA journal_mode = WAL; CREATE TABLE a (b)")
cycle = [second.execute("SELECT 1 UNION ALL SELECT 2")]
cycle[0].fetchone()
cycle.append(cycle)
del cycle  # with a cursor that is half read
first.execute("BEGIN IMMEDIATE")

def begins():
    with contextlib.suppress(sqlite3.OperationalError):  # by words that what is collected may have replaced
        second.execute("BEGIN IMMEDIATE")

waits, at_it = threading.Thread(target=begins), threading.Event()
second.set_trace_callback(lambda _: at_it.set())
waits.start()
at_it.wait()  # it has the connection to itself now, until it gets the lock or gives up
if sys.argv[2] == "apart":
    collect_apart(seconds=0.1)
    time.sleep(0.5)  # it collects
else:
    gc.collect()
first.execute("COMMIT")  # what an event loop goes on to
waits.join()
print("began" if second.in_transaction else "gave up")
"""


@pytest.mark.parametrize(("by", "said"), [("itself", "gave up"), ("apart", "began")])
def test_a_transaction_that_the_loop_is_to_end_is_not_waited_for_by_the_loop(
    tmp_path: Path, by: str, said: str
) -> None:
    command = [sys.executable, "-c", SERVER, tmp_path / "a.db", by]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == said
