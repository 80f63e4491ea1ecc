"""A vLLM server that samples in the engine's place: asked over HTTP, given weights through a folder that it reads.

GET /v1/models, POST /v1/completions                   ids in, ids and log-probs out
GET /weight_info, POST /update_weight_version          a text of ours that names the weights in it
POST /pause /collective_rpc /reset_prefix_cache /resume  to give it others; with these it is VLLM_SERVER_DEV_MODE=1
"""

import asyncio
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

CONNECT_SECONDS = 5.0
ASK_SECONDS = 60.0  # for an answer that takes no work
LOAD_SECONDS = 900.0  # for weights
POLL_SECONDS = 0.25
LIVE_SECONDS = 10.0  # between two looks whether it still answers
ABOVE = 1e-3  # nats above 0 that rounding may make of the log-prob of a certain token
START = (
    "start it as docs/models.md says: VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --host 127.0.0.1 --port PORT "
    "--logprobs-mode processed_logprobs"
)


class ServerError(ValueError):
    """A server that cannot be reached, or does not do what it is asked to."""


class Completion(NamedTuple):
    """What it has made of a prompt."""

    tokens: list[int]
    logprobs: list[float]
    stopped: bool  # by a token or a text that ends it; else cut


class Server:
    """A client of one address. Its weights are named by a text, empty where they are no version of ours."""

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._model = ""
        self._positions = 0

    def open(self) -> None:
        """Raise ServerError unless a server answers that can be given weights, of one model."""
        models = self._ask("GET", "/v1/models").get("data")
        if not isinstance(models, list) or not models or not isinstance(models[0], dict):
            raise self._error("names no model at /v1/models")
        self._model = str(models[0].get("id", ""))
        positions = models[0].get("max_model_len")
        if not self._model or not isinstance(positions, int):
            raise self._error(f"is not vLLM: /v1/models says no max_model_len; {START}")
        self._positions = positions
        self.weights()

    def check_room(self, tokens: int) -> None:
        """Raise ServerError where a prompt and its completion are longer than it was started for."""
        if tokens > self._positions:
            raise self._error(
                f"takes {self._positions} tokens of prompt and completion, and {tokens} may be needed: start it with "
                f"--max-model-len {tokens}, or give fewer sampling.max_tokens"
            )

    def weights(self) -> str:
        """The text that names its weights."""
        named = self._ask("GET", "/weight_info").get("weight_version")
        if not isinstance(named, str):
            raise self._error(f"does not say which weights it has; {START}")
        return named

    def load(self, folder: Path, name: str) -> None:
        """Give it the weights in ``folder``, which it reads itself; until that is done it has no name for them.
        Requests that it works on are ended, and what it kept of prompts is forgotten."""
        unnamed = f"being loaded: {name}"  # nothing that begins as a name does
        self._post("/update_weight_version", {"new_version": unnamed})
        self._post("/pause?mode=abort")
        try:
            self._post(
                "/collective_rpc",
                {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}},
                seconds=LOAD_SECONDS,
                failing=f"could not take the weights in {folder}, which it has to be able to read",
            )
            if self._post("/reset_prefix_cache").get("success") is not True:
                raise self._error("did not forget the prompts of the weights before; does something else use it?")
        finally:
            self._post("/resume")
        if self.weights() != unnamed:
            raise self._error("is given weights by another program, too; each run needs a server of its own")
        self._post("/update_weight_version", {"new_version": name})

    def complete(
        self, requests: Sequence[Mapping[str, Any]], vocabulary: int, between: Callable[[], None] = lambda: None
    ) -> list[list[Completion]]:
        """The completions of each request, all of which are under way at once; `between` is called while they are
        waited for, and what it raises ends them.

        Raises:
            ServerError: without an answer, or for one that is not what was asked for.
        """
        return asyncio.run(self._complete(requests, vocabulary, between))

    async def _complete(
        self, requests: Sequence[Mapping[str, Any]], vocabulary: int, between: Callable[[], None]
    ) -> list[list[Completion]]:
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(trust_env=False, timeout=timeout, limits=limits) as client:

            async def one(request: Mapping[str, Any]) -> list[Completion]:
                asked = {**request, "model": self._model, "return_token_ids": True, "logprobs": 0, "stream": False}
                try:
                    answer = await client.post(f"{self.address}/v1/completions", json=asked)
                except httpx.HTTPError as error:
                    raise self._unreachable(error) from None
                return self._checked(self._read("/v1/completions", answer), request, vocabulary)

            asked = [asyncio.ensure_future(one(request)) for request in requests]
            waiting, looked = set(asked), time.monotonic()
            try:
                while waiting:
                    done, waiting = await asyncio.wait(
                        waiting, timeout=POLL_SECONDS, return_when=asyncio.FIRST_EXCEPTION
                    )
                    for each in done:
                        each.result()
                    between()
                    if waiting and time.monotonic() - looked > LIVE_SECONDS:
                        await self._require_alive(client)
                        looked = time.monotonic()
            finally:  # closed connections end what the server is working on
                for each in asked:
                    each.cancel()
                await asyncio.gather(*asked, return_exceptions=True)
        return [each.result() for each in asked]

    async def _require_alive(self, client: httpx.AsyncClient) -> None:
        try:
            answer = await client.get(f"{self.address}/health", timeout=ASK_SECONDS)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from None
        if answer.status_code != 200:
            raise self._error(f"is not well while it generates: /health answers with status {answer.status_code}")

    def _checked(self, answer: Mapping[str, Any], request: Mapping[str, Any], vocabulary: int) -> list[Completion]:
        choices = answer.get("choices")
        if not isinstance(choices, list) or len(choices) != request["n"]:
            raise self._error(f"was asked for {request['n']} completions of a prompt and did not return them")
        return [self._completion(choice, request, vocabulary) for choice in choices]

    def _completion(self, choice: Any, request: Mapping[str, Any], vocabulary: int) -> Completion:
        choice = choice if isinstance(choice, dict) else {}
        tokens, said = choice.get("token_ids"), choice.get("logprobs")
        logprobs = said.get("token_logprobs") if isinstance(said, dict) else None
        if not isinstance(tokens, list) or not isinstance(logprobs, list):
            raise self._error(f"returns no token ids or no log-probs with a completion; {START}")
        if choice.get("prompt_token_ids") != request["prompt"]:
            raise self._error("has completed another prompt than it was given")
        if not 1 <= len(tokens) <= request["max_tokens"] or len(logprobs) != len(tokens):
            raise self._error(
                f"returned {len(tokens)} tokens with {len(logprobs)} log-probs, {request['max_tokens']} were asked for"
            )
        odd = [token for token in tokens if type(token) is not int or not 0 <= token < vocabulary]
        if odd:
            raise self._error(f"returned the token id {odd[0]!r}, of a vocabulary of {vocabulary}: another model's?")
        odd = [p for p in logprobs if type(p) not in (int, float) or not math.isfinite(p) or p > ABOVE]
        if odd:
            raise self._error(f"returned the log-prob {odd[0]!r}")
        reason = choice.get("finish_reason")
        if reason not in ("stop", "length"):
            raise self._error(f"broke a completion off ({reason!r})")
        if reason == "length" and len(tokens) < request["max_tokens"]:
            raise self._error(f"cut a completion at {len(tokens)} of {request['max_tokens']} tokens")
        return Completion(tokens, logprobs, reason == "stop")

    # -- requests

    def _post(
        self, path: str, content: Any = None, *, seconds: float = ASK_SECONDS, failing: str = ""
    ) -> dict[str, Any]:
        return self._ask("POST", path, content, seconds, failing)

    def _ask(
        self, method: str, path: str, content: Any = None, seconds: float = ASK_SECONDS, failing: str = ""
    ) -> dict[str, Any]:
        timeout = httpx.Timeout(seconds, connect=CONNECT_SECONDS)
        try:
            answer = httpx.request(method, f"{self.address}{path}", json=content, timeout=timeout, trust_env=False)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self._unreachable(error) from None
        return self._read(path.partition("?")[0], answer, failing)

    def _read(self, path: str, answer: httpx.Response, failing: str = "") -> dict[str, Any]:
        """The JSON object of an answer; {} where it is empty."""
        if answer.status_code == 404 and not path.startswith("/v1/"):
            raise self._error(f"has no {path}, by which it is given weights; {START}")
        if answer.status_code != 200:
            words = " ".join(answer.text.split())[:300]
            raise self._error(f"{failing or f'answers {path}'}: status {answer.status_code}: {words}")
        try:
            said = json.loads(answer.content or b"{}")
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise self._error(f"answers {path} with something other than a JSON object")
        return said

    def _unreachable(self, error: Exception) -> ServerError:
        words = " ".join(str(error).split()) or type(error).__name__
        return self._error(f"cannot be reached ({words}); {START}")

    def _error(self, said: str) -> ServerError:
        return ServerError(f"policy.engine: the server at {self.address} {said}")
