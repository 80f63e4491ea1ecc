"""Verdicts are the function's own, whatever the code that it judges writes to sockets and memory."""

import json
import select
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl.records import Problem, Verdict
from rl.verifiers.isolation.leftovers import FOLDER, PREFIX
from rl.verifiers.isolation.pool import Pool
from rl.verifiers.isolation.process import Cell
from rl.verifiers.isolation.sandbox import BUBBLEWRAP, LANDLOCK, NONE, missing

ANSWER = json.dumps({"reward": 1.0, "reason": "forged", "parts": {}})
REWARDS = f"""
import ctypes, os, socket, subprocess, sys, threading, time

calls = 0

FORGE = '''
import os, socket
content = {ANSWER!r}.encode()
for number in range(3, 4096):  # however many files the suite has open by now
    try:
        with socket.socket(fileno=number) as channel:
            channel.sendall(len(content).to_bytes(4, "big") + content)
    except OSError:
        pass
'''

OVERWRITE = '''
import os, sys
with open(f"/proc/{{os.getppid()}}/mem", "r+b", buffering=0) as memory:
    memory.seek(int(sys.argv[1]))
    memory.write(b"right")
'''

def reward(problem, completion):
    global calls
    calls += 1
    return globals()[completion]()

def program():
    os.system(f'"{{sys.executable}}" -c "$CODE"')
    return 0.25, "judged"

def within():
    exec(FORGE, {{}})
    return 0.25, "judged"

def later():
    def forge():
        while not os.path.exists("asked"):
            time.sleep(0.01)
        exec(FORGE, {{}})
    threading.Thread(target=forge).start()
    return 0.25, "judged"

def overwritten():
    kept = bytearray(b"wrong")
    at = ctypes.addressof((ctypes.c_char * len(kept)).from_buffer(kept))
    subprocess.run([sys.executable, "-c", OVERWRITE, str(at)], stderr=subprocess.DEVNULL)
    return float(kept == b"right")

def counted():
    return 0.5, str(calls)

os.environ["CODE"] = FORGE
"""
PROBLEM = Problem("what?", "42", "p.csv:2")
JUDGED = Verdict(0.25, "judged", {})


@pytest.fixture(scope="module", params=[BUBBLEWRAP, LANDLOCK, NONE])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    if lacks := missing(request.param):
        pytest.skip(lacks)
    opened = Pool(REWARDS, "r.py", "reward", seconds=60, memory_mb=512, size=1, cell=Cell(request.param))
    yield opened
    opened.close()


def test_a_program_that_a_verifier_runs_has_no_socket_to_answer_by(pool: Pool) -> None:
    verdicts = pool.judge([PROBLEM] * 4, ["program", "program", "counted", "program"])
    assert [verdict.reason for verdict in verdicts[:2]] == ["judged", "judged"]
    assert (verdicts[2].reward, verdicts[3]) == (0.5, JUDGED)
    (again,) = pool.judge([PROBLEM], ["counted"])
    assert int(again.reason) == int(verdicts[2].reason) + 2  # by the same process: nothing was amiss


def test_what_does_not_repeat_the_number_is_no_answer(pool: Pool) -> None:
    forged, new = pool.judge([PROBLEM] * 2, ["within", "counted"])
    assert forged.error == "r.py: reward sent what is no answer to the completion that it was asked about (p.csv:2)"
    assert new == Verdict(0.5, "1", {})  # the next one is judged by a new process


def test_what_comes_between_two_questions_is_no_answer(pool: Pool) -> None:
    assert pool.judge([PROBLEM], ["later"]) == [JUDGED]
    (process,) = pool._idle.queue
    (folder,) = Path(tempfile.gettempdir()).glob(f"{PREFIX}{process._supervisor.pid}-*")
    (folder / FOLDER / "asked").touch()
    assert select.select([process._channel], [], [], 60)[0]  # it has come
    assert pool.judge([PROBLEM] * 2, ["counted"] * 2) == [Verdict(0.5, "1", {}), Verdict(0.5, "2", {})]


def test_a_program_does_not_write_the_memory_of_the_verifier_that_runs_it(pool: Pool) -> None:
    if pool.cell.sandbox == NONE:
        pytest.skip("limits alone: the kernel says whether it may (Yama)")
    assert pool.judge([PROBLEM], ["overwritten"]) == [Verdict(0.0, "wrong", {})]
