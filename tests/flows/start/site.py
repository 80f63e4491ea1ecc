"""A web server of a stranger's, which counts what it is asked for."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Site:
    """What it answers, and what it was asked."""

    address: str = ""
    content: bytes = b"def reward(problem, completion):\n    return 1.0\n"
    endless: bool = False
    length: bool = True  # whether it says how much it sends
    asked: list[tuple[str, str]] = field(default_factory=list)  # (path, method)
    sent: int = 0  # bytes


@contextmanager
def serving() -> Iterator[Site]:
    """One on this machine."""
    site = Site()
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            site.asked.append((self.path, self.command))
            self.send_response(200)
            if site.length:
                self.send_header("Content-Length", str(2**40 if site.endless else len(site.content)))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write(site.content)
            while site.endless and not over.is_set():
                try:
                    site.sent += self.wfile.write(b"#" * 2**16)
                except OSError:
                    return

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    site.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield site
    finally:
        over.set()
        server.shutdown()
        server.server_close()
