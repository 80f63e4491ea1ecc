"""The client of a verifier's service, against services that do as they like."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rl.records import Problem, Verdict
from rl.verifiers import service
from rl.verifiers.service import BATCH, FIRST, HANGS, Service, ServiceError

PROBLEMS = [Problem(f"q{i}", str(i), f"p:{i}", {"level": i}) for i in range(2)]
PROBLEMS.append(Problem("q2", "", "p:2", {"level": 2}, no_target="p has no target column"))
GOOD = {"rewards": [1, 0.5, None], "reasons": ["right", "near", "timeout"], "parts": [{"a": 1}, {}, {}]}
GOOD["errors"] = [None, None, "took longer"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "BACK_OFF", 0.01)


@contextmanager
def answering(answer: Callable[[Any], tuple[int, str]]) -> Iterator[tuple[str, list[Any]]]:
    """The address of a server that answers each request so, and the requests."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.do_GET()

        def do_GET(self) -> None:
            status, body = answer(asked[-1] if asked else None)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def judged(address: str, count: int = 3, seconds: float = 1.0) -> list[Verdict]:
    client = Service(address, seconds)
    problems = [PROBLEMS[i % 3] for i in range(count)]
    try:
        return client.judge(problems, [f"c{i}" for i in range(count)])
    finally:
        client.close()


def test_verdicts_are_those_of_the_service() -> None:
    with answering(lambda _: (200, json.dumps(GOOD))) as (address, asked):
        first, second, third = judged(f"{address}/")
    assert first == Verdict(1.0, "right", {"a": 1.0})
    assert second == Verdict(0.5, "near")
    assert (third.reason, third.error) == ("timeout", f"{address}: took longer")
    problem = {"prompt": "q1", "target": "1", "source": "p:1", "extra": {"level": 1}}
    assert asked[0]["items"][1] == {"problem": problem, "completion": "c1"}
    assert asked[0]["items"][2]["problem"]["no_target"] == "p has no target column"


def test_batches_are_bounded() -> None:
    def echo(asked: Any) -> tuple[int, str]:
        n = len(asked["items"])
        return 200, json.dumps({"rewards": [0] * n, "reasons": [""] * n, "parts": [{}] * n, "errors": [None] * n})

    with answering(echo) as (address, asked):
        assert len(judged(address, BATCH * 2 + 1)) == BATCH * 2 + 1
    assert [len(each["items"]) for each in asked] == [FIRST, BATCH, BATCH + 1 - FIRST]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("", "something other than JSON"),
        ("[1]", "JSON that is no object"),
        ("{}", "without a list 'rewards' of 3"),
        (json.dumps({**GOOD, "rewards": [1, 1]}), "without a list 'rewards' of 3"),
        (json.dumps({**GOOD, "reasons": None}), "without a list 'reasons' of 3"),
        (json.dumps({**GOOD, "errors": "none"}), "without a list 'errors' of 3"),
        (json.dumps({**GOOD, "rewards": ["1", 0, 0]}), "gave the reward '1'"),
        (json.dumps({**GOOD, "rewards": [None, 0, 0]}), "gave the reward 'None'"),
        (json.dumps({**GOOD, "rewards": [float("nan"), 0, 0]}), "gave the reward 'nan'"),
        (json.dumps({**GOOD, "rewards": [1e300, 0, 0]}), "gave the reward '1e+300'"),
        (json.dumps({**GOOD, "rewards": [10**400, 0, 0]}), "gave the reward '1000"),
        (json.dumps({**GOOD, "parts": [{"a": -(10**400)}, {}, {}]}), "parts that are not numbers"),
        (json.dumps({**GOOD, "reasons": [1, "", ""]}), "a reason that is no text"),
        (json.dumps({**GOOD, "parts": [{"a": "b"}, {}, {}]}), "parts that are not numbers"),
        (
            json.dumps({**GOOD, "parts": [{"mean": 0.9}, {}, {}]}),
            "a part called 'mean'; it has to be a short word",
        ),
        (json.dumps({**GOOD, "parts": [{"exact match?": 1}, {}, {}]}), "a part called 'exact match?'"),
        (json.dumps({**GOOD, "parts": [{"": 1}, {}, {}]}), "a part called ''"),
    ],
)
def test_an_answer_that_is_none_is_an_error(answer: str, says: str) -> None:
    with answering(lambda _: (200, answer)) as (address, _):
        first, *_ = judged(address)
    assert first.reason == "service_error"
    assert first.reward != first.reward
    assert says in first.error
    assert "\n" not in first.error


def all_right(asked: Any) -> tuple[int, str]:
    n = len(asked["items"])
    return 200, json.dumps({"rewards": [1] * n, "reasons": ["right"] * n, "parts": [{}] * n, "errors": [None] * n})


@pytest.mark.slow
def test_a_service_that_hangs_is_given_up_and_tried_again_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CONNECT_SECONDS", 0.1)
    hung = threading.Event()

    def answer(asked: Any) -> tuple[int, str]:
        if not hung.is_set():
            hung.wait(20)
        return all_right(asked)

    with answering(answer) as (address, asked):
        client = Service(address, 0.05)
        verdicts = client.judge(PROBLEMS[:2] * 250, ["c"] * 500)
        assert [len(each["items"]) for each in asked] == [FIRST] + [1] * HANGS
        assert [verdict.reason for verdict in verdicts] == ["service_error"] * HANGS + ["not_tried"] * (500 - HANGS)
        again = client.judge([PROBLEMS[0]] * 100, ["c"] * 100)
        assert [verdict.reason for verdict in again] == ["service_error"] + ["not_tried"] * 99
        assert "3 times in a row, on several problems; the rest was not tried" in again[-1].error
        hung.set()
        client.seconds = 5
        assert [verdict.reward for verdict in client.judge([PROBLEMS[0]] * 100, ["c"] * 100)] == [1.0] * 100
        client.close()


@pytest.mark.slow
def test_a_completion_on_which_a_service_hangs_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service without a time limit of its own: one that hangs holds up all of its request."""
    monkeypatch.setattr(service, "CONNECT_SECONDS", 0.2)
    over = threading.Event()

    def answer(asked: Any) -> tuple[int, str]:
        if any(item["completion"] == "loop" for item in asked["items"]):
            over.wait(20)
        return all_right(asked)

    completions = ["c"] * 20 + ["loop"] + ["c"] * 19
    problems = [PROBLEMS[0]] * 40
    with answering(answer) as (address, _):
        client = Service(address, 0.01)
        try:
            reasons = [verdict.reason for verdict in client.judge(problems, completions)]
            assert reasons == ["right"] * 20 + ["service_error"] + ["right"] * 19
            # nor does a problem, with all of its completions, those of others
            verdicts = client.judge(problems + [PROBLEMS[1]] * 40, ["loop"] * 40 + ["c"] * 40)
            reasons = [verdict.reason for verdict in verdicts]
            assert reasons == ["service_error"] * HANGS + ["not_judged"] * (40 - HANGS) + ["right"] * 40
            assert "3 times in a row on one problem; its other completions were not tried (p:0)" in verdicts[39].error
        finally:
            over.set()


@pytest.mark.parametrize(("status", "attempts"), [(500, 1), (404, 1), (422, 1), (503, 4)])
def test_a_refusal_is_an_error_and_only_a_busy_service_is_asked_again(status: int, attempts: int) -> None:
    with answering(lambda _: (status, "no\nway")) as (address, asked):
        first, *_ = judged(address)
    assert f"answers with status {status}" in first.error
    assert len(asked) == attempts


def test_a_service_that_comes_back_is_used() -> None:
    answers = iter([(503, ""), (502, ""), (200, json.dumps(GOOD))])
    with answering(lambda _: next(answers)) as (address, _):
        assert judged(address)[0].reward == 1


@pytest.mark.slow
def test_one_that_does_not_answer_is_an_error_and_its_password_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CONNECT_SECONDS", 0.2)
    hung = threading.Event()
    with answering(lambda _: ((hung.wait(10) and 200) or 200, "")) as (address, _):
        first, *_ = judged(address.replace("//", "//me:secret@"), seconds=0.1)
        hung.set()
    assert "no answer within 0.3 s" in first.error
    nobody = judged("http://me:secret@127.0.0.1:1")[0]
    assert nobody.error.startswith("http://127.0.0.1:1: cannot be reached (")
    assert "secret" not in first.error + nobody.error
    with pytest.raises(ServiceError, match="is it running"):
        Service("http://127.0.0.1:1", 1).warm()


def test_a_service_on_this_machine_is_asked_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with answering(lambda _: (200, json.dumps(GOOD))) as (address, _):
        assert (
            judged(address)[0]
            == judged(address.replace("127.0.0.1", "localhost"))[0]
            == Verdict(1.0, "right", {"a": 1})
        )


@contextmanager
def pouring(part: bytes, pause: float, head: bytes = b"HTTP/1.0 200 OK\r\n\r\n") -> Iterator[str]:
    """The address of a server whose answers begin so and never end."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with suppress(OSError):
                self.wfile.write(head)
                while not over.wait(pause):
                    self.wfile.write(part)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("head", [b"", b"HTTP/1.0 200 OK\r\nX-Slow: ", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_an_answer_that_comes_by_the_byte_is_given_up(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "CONNECT_SECONDS", 0.3)
    with pouring(b"H", 0.02, head) as address:
        first, *_ = judged(address, seconds=0.1)
    assert "no answer within 0.4 s" in first.error


def test_an_answer_without_end_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_BYTES", 2**20)
    with pouring(b" " * 2**16, 0) as address:
        first, *_ = judged(address, seconds=60.0)
    assert "answers with more than 1048576 bytes" in first.error
