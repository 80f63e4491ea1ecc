"""A verifier as a service: `POST /verify` judges a batch, `GET /health` names the verifier.

The messages are those of `rl.verifiers.service`.
"""

import json
from contextlib import suppress
from math import isnan
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rl.records import Problem
from rl.verifiers.contract import Verifier
from rl.verifiers.spec import VerifierSpec

if TYPE_CHECKING:
    from fastapi import FastAPI

MAX_ITEMS = 256
MAX_TEXT = 200_000  # characters
MAX_EXTRA = 100_000  # characters of JSON
MAX_BODY = 32 * 2**20  # bytes

Text = Annotated[str, Field(max_length=MAX_TEXT)]


class ProblemGiven(BaseModel):
    """A problem, as a client sends it."""

    model_config = ConfigDict(extra="forbid")

    prompt: Text
    target: Text | None = None
    no_target: str = Field("", max_length=1000)  # why it has none: a function that asks for it fails with that
    source: str = Field("", max_length=1000)
    extra: dict[str, Any] = Field(default_factory=dict)

    @field_validator("extra")
    @classmethod
    def _bounded(cls, extra: dict[str, Any]) -> dict[str, Any]:
        if len(json.dumps(extra)) > MAX_EXTRA:
            raise ValueError(f"more than {MAX_EXTRA} characters of JSON")
        return extra


class Item(BaseModel):
    """A completion and its problem."""

    model_config = ConfigDict(extra="forbid")

    problem: ProblemGiven
    completion: Text


class Batch(BaseModel):
    """The completions of a request."""

    model_config = ConfigDict(extra="forbid")

    items: list[Item] = Field(min_length=1, max_length=MAX_ITEMS)


class Verdicts(BaseModel):
    """The verdict on each item, in their order."""

    rewards: list[float | None]  # null where the verifier failed
    reasons: list[str]
    parts: list[dict[str, float]]
    errors: list[str | None]  # a line where the verifier failed


class Health(BaseModel):
    """The answer of a service that works."""

    verifier: str


def problem_of(given: ProblemGiven) -> Problem:
    """The problem that the verifier gets."""
    why = given.no_target or ("the problem that was sent has no target" if given.target is None else "")
    return Problem(given.prompt, given.target or "", given.source, given.extra, no_target=why)


def verifier_app(spec: VerifierSpec, verifier: Verifier) -> "FastAPI":
    """The application that judges with ``verifier``, which any number of threads may call."""
    from fastapi import FastAPI

    app = FastAPI(title="rlvf verifier", description=f"judges completions with {spec.name}")
    app.add_middleware(_Bounded)

    @app.post("/verify")
    def verify(batch: Batch) -> Verdicts:
        verdicts = verifier.judge(
            [problem_of(item.problem) for item in batch.items], [item.completion for item in batch.items]
        )
        return Verdicts(
            rewards=[None if isnan(verdict.reward) else verdict.reward for verdict in verdicts],
            reasons=[verdict.reason for verdict in verdicts],
            parts=[dict(verdict.parts) for verdict in verdicts],
            errors=[verdict.error or None for verdict in verdicts],
        )

    @app.get("/health")
    def health() -> Health:
        return Health(verifier=spec.name)

    return app


class _TooLargeError(Exception):
    """The body is longer than MAX_BODY."""


class _Bounded:
    """Refuses a body that is longer than MAX_BODY before it is read whole."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        read = 0

        async def bounded() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > MAX_BODY:
                raise _TooLargeError
            return message

        async def answer(message: Any) -> None:
            if read <= MAX_BODY:  # else it is the application's own error for the body that it did not get
                await send(message)

        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > MAX_BODY:
            read = int(length)
        else:
            with suppress(_TooLargeError):
                await self._app(scope, bounded, answer)
        if read > MAX_BODY:
            body = json.dumps({"detail": f"the body is longer than {MAX_BODY} bytes"}).encode()
            headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
            await send({"type": "http.response.start", "status": 413, "headers": headers})
            await send({"type": "http.response.body", "body": body})
