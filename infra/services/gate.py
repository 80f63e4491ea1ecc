"""The gate of an HTTP server: whether a request passes, by its head alone.

A stranger's page in a browser of this machine can send requests to 127.0.0.1 and to the local network, but cannot
choose the headers `Host`, `Origin` and `Sec-Fetch-Site`, or know a secret. So a gate requires of a request:

- `Host` is a name of this machine: a stranger's name that resolves to 127.0.0.1 (DNS rebinding) is refused;
- `Origin`, where there is one, is the server's own, and `Sec-Fetch-Site` says the same;
- the password (`Authorization: Basic`), for programs, or the cookie that a link with a key has set, for people. The
  proof that the server knows the password needs none: a program asks for it before it sends the password.

Keys and cookies are signatures of the password over the time they end at: the server keeps no list of them.
"""

import base64
import hashlib
import hmac
import ipaddress
import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

KEY = "key"  # the parameter of a link
LINK_SECONDS = 12 * 3600.0  # a printed link ends up in logs
PAGE_SECONDS = 12 * 3600.0  # a browser sends a cookie to every port of a host
PROOF = "/.rlvf/proof"
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

Headers = Sequence[tuple[str, str]]  # names in lower case


@dataclass(frozen=True)
class Answer:
    """An answer of the gate, in place of the server's."""

    status: int
    body: str
    headers: Headers = ()


class Gate:
    """The gate of one server. Without `auth` (user:password) it requires no password."""

    def __init__(self, auth: str | None, port: int, names: Collection[str], *, tls: bool = False) -> None:
        """`names`: this machine's in addresses, beside those of loopback."""
        self._auth = auth
        self._port = port
        self._tls = tls
        self._names = {name.strip("[]").lower() for name in (*LOOPBACK_NAMES, *names)}
        self._cookie = f"rlvf-{port}"  # cookies of all ports of a host are in one jar

    def answer(self, method: str, path: str, query: str, headers: Headers) -> Answer | None:
        """The answer to a request that does not pass; None for one that does."""
        strange = self.strange(method, headers)
        if strange is not None:
            return Answer(403, strange)
        asked = dict(parse_qsl(query))
        if self._auth is None:
            return None
        if path == PROOF and method == "GET":
            return Answer(200, proof(self._auth, self._port, asked.get("of", "")), [("content-type", "text/plain")])
        if method in ("GET", "HEAD") and _is_signed(self._auth, "link", asked.get(KEY, "")):
            return self._let_in(path, query)
        if self.is_known(headers):
            return None
        return _who_are_you(any("text/html" in each for each in _all(headers, "accept")))

    def strange(self, method: str, headers: Headers) -> str | None:
        """Why `Host`, `Origin` or `Sec-Fetch-Site` refuse a request; None where they do not."""
        hosts = _all(headers, "host")
        if len(hosts) != 1 or _name(hosts[0]) not in self._names:
            return f"not a name of this server: {', '.join(hosts)[:200] or 'none'}"
        for origin in _all(headers, "origin"):
            if urlsplit(origin).netloc.lower() != hosts[0].lower():
                return f"not a page of this server: {origin[:200]}"
        site, mode = (_all(headers, f"sec-fetch-{what}") for what in ("site", "mode"))
        if set(site) - {"same-origin", "none"} and not (method == "GET" and mode == ["navigate"]):
            return f"not a page of this server: {', '.join(site)[:200]}"
        return None

    def is_known(self, headers: Headers) -> bool:
        """Whether a request has the password, as a program's, or the cookie that a link has set, as a browser's."""
        if self._auth is None:
            return True
        if any(same(given, f"Basic {basic(self._auth)}") for given in _all(headers, "authorization")):
            return True
        cookies = [each.strip().partition("=") for line in _all(headers, "cookie") for each in line.split(";")]
        return any(name == self._cookie and _is_signed(self._auth, "page", value) for name, _, value in cookies)

    def is_token(self, text: str) -> bool:
        """Whether a text is user:password, in a message instead of a header."""
        return self._auth is None or same(text, self._auth)

    def _let_in(self, path: str, query: str) -> Answer:
        """A page that sets the cookie and goes on to the address without the key, its fragment kept. By a script: a
        redirect that began at another site's page would go without the new cookie."""
        assert self._auth is not None
        rest = urlencode([(name, value) for name, value in parse_qsl(query, True) if name != KEY])
        target = json.dumps("/" + path.lstrip("/\\") + ("?" + rest if rest else "")).replace("<", "\\u003c")
        value = signed(self._auth, "page", time.time() + PAGE_SECONDS)
        cookie = f"{self._cookie}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={PAGE_SECONDS:.0f}"
        headers = [("set-cookie", cookie + ("; Secure" if self._tls else ""))]
        return Answer(200, _page(f"<script>location.replace({target} + location.hash)</script>"), headers)


def signed(auth: str, kind: str, until: float) -> str:
    """The signed value of a link (`link`) or a cookie (`page`) that is valid `until`, in seconds since 1970."""
    return f"{int(until):x}.{_signature(auth, f'{kind} {int(until):x}')}"


def proof(auth: str, port: int, nonce: str) -> str:
    """The answer to `nonce` that only a server at that port that knows the password gives."""
    return _signature(auth, f"proof {port} {nonce}")


def basic(auth: str) -> str:
    """user:password as `Authorization: Basic` has it."""
    return base64.b64encode(auth.encode()).decode()


def same(one: str, other: str) -> bool:
    """Whether two texts are equal, in constant time."""
    return hmac.compare_digest(one.encode(), other.encode())


def _signature(auth: str, what: str) -> str:
    return hmac.new(auth.encode(), what.encode(), hashlib.sha256).hexdigest()[:32]


def _is_signed(auth: str, kind: str, value: str) -> bool:
    try:
        until = int(value.partition(".")[0], 16)
    except ValueError:
        return False
    return until > time.time() and same(value, signed(auth, kind, until))


def _who_are_you(person: bool) -> Answer:
    if person:
        return Answer(401, _page("<p>Open this page by the link that <code>rlvf status</code> prints.</p>"))
    text = 'this server asks for a password: eval "$(rlvf status --shell)" gives it to the commands of a shell\n'
    return Answer(401, text, [("content-type", "text/plain; charset=utf-8")])


def _page(body: str) -> str:
    return f"<!doctype html><meta charset=utf-8><title>rlvf</title>{body}\n"


def _all(headers: Headers, name: str) -> list[str]:
    return [value for key, value in headers if key == name]


def _name(host: str) -> str:
    """The name or address in a `Host`, without the port: a tunnel has its own."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return str(ipaddress.ip_address(name)) if ":" in name else name
    except ValueError:
        return ""
