"""A server that answers as vLLM does, from a policy of ours: ids and log-probs are right unless a test spoils them."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file

from rl.model.policy import Policy
from rl.sampling.engine import Engine

Spoil = Callable[[str, Any], Any]  # of a path and its answer: another answer, or a status


@dataclass
class VllmLike:
    """What it holds, and what it was asked."""

    policy: Policy
    address: str = ""
    positions: int = 256
    named: str = "default"
    paused: bool = False
    spoil: Spoil = lambda _, answer: answer
    asked: list[tuple[str, Any]] = field(default_factory=list)  # path and body of each request

    def answer(self, path: str, body: Any) -> Any:
        match path.partition("?")[0]:
            case "/v1/models":
                return {"data": [{"id": "served", "max_model_len": self.positions}]}
            case "/health":
                return {}
            case "/weight_info":
                return {"weight_version": self.named}
            case "/update_weight_version":
                self.named = body["new_version"]
                return {"success": True}
            case "/pause" | "/resume":
                self.paused = path.startswith("/pause")
                return {}
            case "/reset_prefix_cache":
                return {"success": True}
            case "/collective_rpc":
                assert self.paused
                assert body["method"] == "reload_weights"
                [file] = Path(body["kwargs"]["weights_path"]).glob("*.safetensors")
                self.policy.load_weights(load_file(file))
                return {"results": [None]}
            case "/v1/completions":
                return {"choices": [*self._choices(body)]}
        return 404

    def _choices(self, body: Any) -> Iterator[dict[str, Any]]:
        assert body["model"] == "served"
        greedy = body["temperature"] == 0
        assert not greedy or body["n"] == 1
        # each completion has its own seed, as vLLM counts them on
        seeds = [body["seed"] + i for i in range(body["n"])]
        noise = np.stack([np.random.default_rng(seed).random(body["max_tokens"], np.float32) for seed in seeds])
        engine = Engine(
            self.policy,
            temperature=body["temperature"] or 1.0,
            ends=tuple(body.get("stop_token_ids", ())),
            stop=tuple(body.get("stop", ())),
        )
        drawn = [engine.add(body["prompt"], body["max_tokens"], None if greedy else row) for row in noise]
        engine.run()
        for index, draw in enumerate(drawn):
            yield {
                "index": index,
                "token_ids": draw.tokens.tolist(),
                "prompt_token_ids": body["prompt"],
                "logprobs": {"token_logprobs": draw.logprobs.tolist()},
                "finish_reason": "stop" if draw.ended else "length",
            }


@contextmanager
def vllm_like(policy: Policy) -> Iterator[VllmLike]:
    """One that is served on a port of its own."""
    served, lock = VllmLike(policy), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.reply(json.loads(self.rfile.read(int(self.headers["content-length"] or 0)) or b"null"))

        def do_GET(self) -> None:
            self.reply(None)

        def reply(self, body: Any) -> None:
            with lock:
                served.asked.append((self.path, body))
                answer = served.spoil(self.path, served.answer(self.path, body))
            self.send_response(answer if isinstance(answer, int) else 200)
            self.end_headers()
            if not isinstance(answer, int):
                self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
