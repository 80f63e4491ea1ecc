"""A verifier at an address: `rlvf verifier serve`, or anything else that answers as it does.

POST /verify   {"items": [{"problem": {"prompt", "target", "source", "extra"}, "completion"}, …]}
            →  {"rewards": [number or null, …], "reasons": [text, …], "parts": [{name: number}, …],
                "errors": [text or null, …]}          each as long as items; a reward of null has its error
GET /health →  {"verifier": name}
"""

import asyncio
import json
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from rl.records import Problem, Verdict
from rl.verifiers.parts import MAX_REASON
from rl.verifiers.timeouts import TimeOuts
from rl.verifiers.verdicts import NOT_JUDGED, NOT_TRIED, as_json, checked, failed

BATCH = 64  # completions in one request
FIRST = 8  # in the first one: it may be the one that shows that the service hangs
HANGS = 3  # completions without an answer in time, in a row, after which others are not asked
ATTEMPTS = 4
BACK_OFF = 0.25  # seconds before the second attempt; each further one waits twice as long
CONNECT_SECONDS = 5.0
MAX_BYTES = 2**24  # of an answer; BATCH of them with all their parts have less than 1 MB
BUSY = (429, 502, 503, 504)  # worth another attempt
HERE = ("all://localhost", "all://127.0.0.1", "all://[::1]")  # a proxy would find another machine there


class ServiceError(ValueError):
    """A service that cannot be reached, or does not answer as a verifier does."""


class ServiceHangsError(ServiceError):
    """A service that took a request and gave no answer in time."""


class Service:
    """A client of one address. Any thread may call it."""

    about = ""

    def __init__(self, address: str, seconds: float, certificates: Path | None = None) -> None:
        """`seconds` for one completion; `certificates`: a folder with authority.pem, machine.pem and machine.key, used
        for https where they are there."""
        self.address = address.rstrip("/")
        self.shown = urlsplit(self.address)._replace(netloc=urlsplit(self.address).netloc.rpartition("@")[2]).geturl()
        self.seconds = seconds
        self._answered = False  # it has, once
        self._timeouts = TimeOuts(HANGS)
        self._tls = httpx.create_ssl_context()
        if certificates is not None and self.address.startswith("https://") and (certificates / "machine.pem").exists():
            self._tls = ssl.create_default_context(cafile=str(certificates / "authority.pem"))
            self._tls.load_cert_chain(certificates / "machine.pem", certificates / "machine.key")

    def judge(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        """A verdict on each completion of the problem beside it, failures included.

        What is in a request without an answer in time is asked one by one: which of them it is cannot be told. After
        HANGS such in a row on one problem its further completions are not asked, after as many on several nothing more.
        """
        verdicts: list[Verdict] = []
        timeouts, alone = self._timeouts.of_call(), 0  # up to which completion they are asked one by one
        while (at := len(verdicts)) < len(problems):
            hangs = f"{self.shown}: gave no answer in time {self._timeouts.limit} times in a row"
            if at and self._timeouts.hangs:
                said = f"{hangs}, on several problems; the rest was not tried"
                return verdicts + [failed(NOT_TRIED, said)] * (len(problems) - at)
            if timeouts.is_hopeless(problems[at]):
                said = f"{hangs} on one problem; its other completions were not tried ({problems[at].source})"
                verdicts.append(failed(NOT_JUDGED, said))
                continue
            size = 1 if at < alone or self._timeouts.any else BATCH if self._answered else FIRST
            asked = problems[at : at + size]
            try:
                verdicts += self._ask(asked, completions[at : at + size])
                self._answered = True
            except ServiceHangsError as error:
                if len(asked) > 1:
                    alone = at + len(asked)
                    continue
                timeouts.count(asked[0], timeout=True)
                verdicts.append(failed("service_error", str(error)))
                continue
            except ServiceError as error:
                verdicts += [failed("service_error", str(error))] * len(asked)
            for problem in asked:
                timeouts.count(problem, timeout=False)
        return verdicts

    def warm(self) -> None:
        """Raise ServiceError unless the service answers."""
        self._request("GET", "/health", None, CONNECT_SECONDS)

    def close(self) -> None:
        """Nothing is open between two requests."""

    def _ask(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        items = [
            {"problem": as_json(problem), "completion": completion}
            for problem, completion in zip(problems, completions, strict=True)
        ]
        answer = self._request("POST", "/verify", {"items": items}, CONNECT_SECONDS + self.seconds * len(items))
        columns = [answer.get(name) for name in ("rewards", "reasons", "parts", "errors")]
        for name, column in zip(("rewards", "reasons", "parts", "errors"), columns, strict=True):
            if not isinstance(column, list) or len(column) != len(items):
                raise ServiceError(f"{self.shown}: answered without a list {name!r} of {len(items)}")
        return [self._verdict(*row) for row in zip(*(column or [] for column in columns), strict=True)]

    def _verdict(self, reward: Any, reason: Any, parts: Any, error: Any) -> Verdict:
        if isinstance(error, str) and error:
            known = isinstance(reason, str) and reason.isidentifier() and reason.isascii()
            line = f"{self.shown}: {' '.join(error.split())[:300]}"
            return failed(reason[:MAX_REASON] if known else "service_error", line)
        try:
            return checked(reward, reason, parts)
        except ValueError as wrong:
            return failed("service_error", f"{self.shown}: {wrong}")

    def _request(self, method: str, path: str, content: Any, seconds: float) -> dict[str, Any]:
        """The JSON object of the service's answer. Raises ServiceError."""
        said, hung_up = "", False
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(BACK_OFF * 2 ** (attempt - 1))
            try:
                status, body = asyncio.run(self._exchange(method, path, content, seconds))
            except (httpx.ReadTimeout, TimeoutError):
                raise ServiceHangsError(f"{self.shown}: no answer within {seconds:g} s") from None
            except httpx.TransportError as error:
                said = f"cannot be reached ({' '.join(str(error).split()) or type(error).__name__})"
                # how a server that speaks TLS ends a connection that does not
                hung_up = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError)
                continue
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise ServiceError(f"{self.shown}: {' '.join(str(error).split())}") from None
            if status in BUSY:
                said, hung_up = f"answers with status {status}", False
                continue
            if status != 200:
                words = _line(body.decode(errors="replace"))
                raise ServiceError(f"{self.shown}: answers with status {status}: {words}")
            try:
                answer = json.loads(body)
            except (ValueError, RecursionError):
                raise ServiceError(f"{self.shown}: answers with something other than JSON") from None
            if not isinstance(answer, dict):
                raise ServiceError(f"{self.shown}: answers with JSON that is no object")
            return answer
        remedy = "is it running? (rlvf verifier serve)"
        if hung_up and self.address.startswith("http://"):
            remedy = f"try {self.shown.replace('http', 'https', 1)}, as rlvf verifier serve speaks https"
        raise ServiceError(f"{self.shown}: {said}, {ATTEMPTS} times; {remedy}")

    async def _exchange(self, method: str, path: str, content: Any, seconds: float) -> tuple[int, bytes]:
        """Status and body of an answer that is whole `seconds` after the question, for which there is a connection in
        CONNECT_SECONDS: httpx's own limits are of each read, and a header may come by the byte too. Raises
        TimeoutError, ServiceError for a body of more than MAX_BYTES, and what httpx raises."""
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        body = bytearray()
        plain = {"Accept-Encoding": "identity"}  # a few packed bytes may stand for any number
        url = f"{self.address}{path}"
        async with (
            asyncio.timeout(CONNECT_SECONDS + seconds),
            httpx.AsyncClient(verify=self._tls, mounts=dict.fromkeys(HERE)) as client,
            client.stream(method, url, json=content, headers=plain, timeout=timeout) as response,
        ):
            async for part in response.aiter_raw():
                body += part
                if len(body) > MAX_BYTES:
                    raise ServiceError(f"{self.shown}: answers with more than {MAX_BYTES} bytes")
        return response.status_code, bytes(body)


def _line(text: str) -> str:
    return " ".join(text.split())[:200]
