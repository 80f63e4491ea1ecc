"""Functions of users that misbehave, in real processes."""

import socket
from collections.abc import Callable, Iterator

import psutil
import pytest

from rl.records import Problem, Verdict
from rl.verifiers.isolation.pool import Pool
from rl.verifiers.isolation.process import PASS_RIGHTS

REWARDS = """
import os, sys, time, subprocess

def reward(problem, completion):
    return globals()[completion](problem)

def loop(problem):
    while True:
        pass

def sleep(problem):
    time.sleep(1000)

def regex(problem):
    import re
    re.match("(a+)+$", "a" * 60 + "b")  # holds the interpreter's lock

def memory(problem):
    return len(bytearray(10**11))

def grow(problem):
    kept = []
    while True:
        kept.append(bytes(10**7))  # address space that nobody writes to, so that it takes no time

def leave(problem): os._exit(3)
def stop(problem): sys.exit("enough")
def crash(problem): os.kill(os.getpid(), 11)
def interrupt(problem): raise KeyboardInterrupt
def divide(problem): return 1 / 0
def deep(problem): return deep(problem)
def untold(problem): raise Untold
def none(problem): return None
def text(problem): return "1.0"
def nan(problem): return float("nan")
def infinite(problem): return -float("inf")
def huge(problem): return 1e30
def triple(problem): return 1, "a", {}, 2
def reason(problem): return 1, 2
def part(problem): return {"right": "yes"}
def named(problem): return {"mean": 1.0}
def listed(problem): return [1.0]
def many(problem): return {f"p{i}": 0 for i in range(99)}

class Untold(Exception):
    def __str__(self): raise ValueError

def right(problem): return 1
def true(problem): return True
def half(problem): return 0.5
def penalty(problem): return -1.0
def bonus(problem): return 2.5
def why(problem): return 0.25, "close"
def parts(problem): return {"format": 0.1, "right": 0.9}
def both(problem): return {"format": 0.1, "right": 0.0}, "told"
def printed(problem):
    print("x" * 10**6); sys.stderr.write("y" * 10**6)
    return 1.0
def fork(problem):
    os.fork()
    return 1.0
def child(problem):
    subprocess.Popen(["sleep", "1000"])
    return 1.0
def child_and_loop(problem):
    subprocess.Popen(["sleep", "1000"])
    loop(problem)
def closed(problem):
    os.closerange(3, 4096)
    return 1.0
def seen(problem): return 1.0, f"{problem.prompt} {problem.target} {problem.extra['level']}"
def environment(problem): return float("SECRET_TOKEN" in os.environ or "HOME" in os.environ)
def sends_a_file(problem):
    import socket
    (number,) = [int(name) for name in os.listdir("/dev/fd") if os.path.exists(f"/dev/fd/{name}")
                 and os.readlink(f"/dev/fd/{name}").startswith("socket:")]
    try:
        with socket.socket(fileno=os.dup(number)) as channel:
            socket.send_fds(channel, [b"x"], [0])
    except PermissionError:
        return 0.5
    return 1.0
def reads(problem): return float(len(sys.stdin.read()))
def surrogate(problem): return 1.0, "\\ud800"
def numpy(problem):
    import numpy
    return numpy.float32(0.5)
"""
PROBLEM = Problem("what?", "42", "p.csv:2", {"level": 3})


def line_of(name: str) -> int:
    (number,) = [i for i, line in enumerate(REWARDS.splitlines(), 1) if line.startswith(f"def {name}(")]
    return number


def processes() -> list[psutil.Process]:
    """The children that run, not those that an ended one left to be collected."""
    running = [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]
    return [one for one in running if one.name() == "sleep" or "child.py" in " ".join(one.cmdline())]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    before = processes()  # of other tests
    opened = Pool(REWARDS, "my_reward.py", "reward", seconds=0.8, memory_mb=400, size=2)
    yield opened
    opened.close()
    assert [one for one in processes() if one not in before] == []


@pytest.fixture
def ask(pool: Pool) -> Callable[[str], Verdict]:
    return lambda completion: pool.judge([PROBLEM], [completion])[0]


@pytest.mark.parametrize(
    ("completion", "reason", "says"),
    [
        ("loop", "timeout", "my_reward.py: reward took longer than 0.8 s (p.csv:2)"),
        ("sleep", "timeout", "took longer than 0.8 s"),
        ("regex", "timeout", "took longer than 0.8 s"),
        ("child_and_loop", "timeout", "took longer than 0.8 s"),
        ("memory", "verifier_error", "MemoryError"),
        ("leave", "verifier_error", "ended its process with exit code 3"),
        ("crash", "verifier_error", "ended its process by SIGSEGV"),
        ("closed", "verifier_error", "ended its process"),
        ("stop", "verifier_error", f"my_reward.py:{line_of('stop')}: SystemExit: enough"),
        ("interrupt", "verifier_error", "KeyboardInterrupt"),
        ("divide", "verifier_error", f"my_reward.py:{line_of('divide')}: ZeroDivisionError: division by zero"),
        ("deep", "verifier_error", "RecursionError"),
        ("untold", "verifier_error", f"my_reward.py:{line_of('untold')}: Untold: (its text cannot be made)"),
        ("nonsense", "verifier_error", "KeyError: 'nonsense'"),
        ("none", "verifier_error", "my_reward.py: TypeError: returned None; a reward is a number"),
        ("text", "verifier_error", "returned '1.0'; a reward is a number"),
        ("nan", "verifier_error", "returned nan; a reward is finite"),
        ("infinite", "verifier_error", "returned -inf; a reward is finite"),
        ("huge", "verifier_error", "at most 1e+06"),
        ("triple", "verifier_error", "returned a tuple of 4; give (reward, reason)"),
        ("reason", "verifier_error", "returned 2 as reason"),
        ("part", "verifier_error", "returned 'yes' as part 'right'; a reward is a number"),
        ("named", "verifier_error", "a part called 'mean'"),
        ("many", "verifier_error", "give at most 16 by name"),
        ("listed", "verifier_error", "returned [1.0]; it is called for one completion at a time"),
    ],
)
def test_what_goes_wrong_is_an_error_of_one_line(
    ask: Callable[[str], Verdict], completion: str, reason: str, says: str
) -> None:
    verdict = ask(completion)
    assert verdict.reward != verdict.reward  # NaN
    assert verdict.reason == reason
    assert says in verdict.error
    assert "\n" not in verdict.error
    assert ask("right").reward == 1  # the next one is judged


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("problem.target in completion", "AttributeError: q.csv has no target column"),
        ("getattr(problem, 'target', '') == ''", ""),
        ("problem.extra['sum'] == 7 and 'q.csv' in repr(problem)", ""),
        ("problem['sum'] == 7", "TypeError: a problem is no dict: write problem.extra['sum']"),
    ],
)
def test_a_problem_without_a_target_has_none_to_compare_with(expression: str, says: str) -> None:
    problem = Problem("add", "", "q.csv:1", {"sum": 7}, no_target="q.csv has no target column")
    pool = Pool(f"def reward(problem, completion):\n    return {expression}\n", "r.py", "reward", 60, 400, size=1)
    try:
        (verdict,) = pool.judge([problem], ["anything"])
    finally:
        pool.close()
    assert says in verdict.error
    assert verdict.error or verdict.reward == 1


def test_memory_that_grows_to_the_limit_is_an_error_of_one_line() -> None:
    pool = Pool(REWARDS, "my_reward.py", "reward", seconds=30, memory_mb=400, size=1)  # it has to be filled in time
    try:
        grown, right = (pool.judge([PROBLEM], [name])[0] for name in ("grow", "right"))
    finally:
        pool.close()
    assert grown.reason == "verifier_error"
    assert grown.error.endswith("MemoryError")
    assert right.reward == 1  # the next one is judged


@pytest.mark.parametrize(
    ("completion", "reward", "reason", "parts"),
    [
        ("right", 1, "right", {}),
        ("true", 1, "right", {}),
        ("half", 0.5, "graded", {}),
        ("penalty", -1, "graded", {}),
        ("bonus", 2.5, "graded", {}),
        ("why", 0.25, "close", {}),
        ("parts", 1, "right", {"format": 0.1, "right": 0.9}),
        ("both", 0.1, "told", {"format": 0.1, "right": 0}),
        ("printed", 1, "right", {}),
        ("fork", 1, "right", {}),
        ("child", 1, "right", {}),
        ("seen", 1, "what? 42 3", {}),
        ("environment", 0, "wrong", {}),
        ("reads", 0, "wrong", {}),
        ("numpy", 0.5, "graded", {}),
        ("surrogate", 1, "\ud800", {}),
    ],
)
def test_what_a_function_returns_is_its_verdict(
    ask: Callable[[str], Verdict],
    monkeypatch: pytest.MonkeyPatch,
    completion: str,
    reward: float,
    reason: str,
    parts: dict[str, float],
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    for _ in range(2):
        assert ask(completion) == Verdict(reward, reason, parts)


@pytest.mark.slow
def test_verdicts_come_in_the_order_of_the_completions(pool: Pool) -> None:
    texts = ["sleep", "right", "half", "leave", "right", "loop", "half"] * 2
    rewards = [verdict.reward for verdict in pool.judge([PROBLEM] * len(texts), texts)]
    known = {"right": 1.0, "half": 0.5}
    assert [known.get(text) for text in texts] == [None if reward != reward else reward for reward in rewards]


def test_what_is_killed_takes_its_children_along(ask: Callable[[str], Verdict]) -> None:
    before = {one.pid for one in processes() if one.name() == "sleep"}  # of earlier tests, whose parent still runs
    assert ask("child_and_loop").reason == "timeout"
    assert {one.pid for one in processes() if one.name() == "sleep"} <= before
    assert ask("right") == Verdict(1.0, "right", {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def reward(problem, completion):\n  return 1 +\n", "my_reward.py:2: SyntaxError"),
        ("import no_such_package\n", "my_reward.py:1: ModuleNotFoundError: No module named 'no_such_package'"),
        ("x = 1\n", "my_reward.py: TypeError: reward is no function"),
        ("import os\nos._exit(1)\n", "my_reward.py cannot be loaded: it ended its process with exit code 1"),
        (
            "def reward(problem): return 1\n",
            "my_reward.py: TypeError: reward(problem) is called as reward(problem, completion): too many",
        ),
    ],
)
def test_a_file_that_cannot_be_used_fails_every_completion(text: str, says: str) -> None:
    pool = Pool(text, "my_reward.py", "reward", seconds=1, memory_mb=512, size=1)
    try:
        (verdict,) = pool.judge([PROBLEM], ["x"])
        assert (verdict.reason, verdict.reward != verdict.reward) == ("verifier_error", True)
        assert says in verdict.error
    finally:
        pool.close()


def test_no_open_file_can_be_left_in_the_socket_of_the_parent(ask: Callable[[str], Verdict]) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        try:
            ours.setsockopt(socket.SOL_SOCKET, PASS_RIGHTS, 0)
        except OSError:
            pytest.skip("the kernel cannot refuse files in a socket: needs Linux 6.16")
    assert ask("sends_a_file").reward == 0.5
