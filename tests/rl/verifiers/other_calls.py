"""Function calls read another way: a text is divided into tokens first, and calls are paired one by one."""

import json
import re
from typing import Any

from rl.verifiers.reading.calls import MAX_CALLS

TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*")|(?P<number>-?(?:0|[1-9][0-9]*)"""
    r"""(?P<part>\.[0-9]+)?(?P<power>[eE][+-]?[0-9]+)?)|(?P<word>[A-Za-z_][A-Za-z0-9_.-]*)|(?P<sign>[][(){},:;=])"""
    r"""|(?P<blank>[ \t\r\n]+)"""
)
WORDS = {"true": True, "false": False, "null": None}
Parsed = tuple[str, dict[str, Any]]


class Independent:
    """Calls in a text, by its tokens. Raises ValueError where it has none."""

    def __init__(self, text: str) -> None:
        self.tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            token = TOKEN.match(text, at)
            if token is None:
                raise ValueError
            at = token.end()
            kind = next(name for name in ("string", "number", "word", "sign", "blank") if token[name] is not None)
            real = kind == "number" and (token["part"] or token["power"])
            self.tokens.append(("real" if real else kind, token[0]))

    def calls(self) -> list[Parsed]:
        self.skip()
        plain = self.kind(0) == "word" or (self.next("[") and self.called_within())
        found = self.plain() if plain else self.objects()
        self.skip()
        if self.tokens or not found or len(found) > MAX_CALLS:
            raise ValueError
        return found

    def called_within(self) -> bool:
        """Whether behind the bracket a name and a bracket follow."""
        rest = [token for token in self.tokens[1:] if token[0] != "blank"][:2]
        return [kind for kind, _ in rest] == ["word", "sign"] and rest[1][1] == "("

    def plain(self) -> list[Parsed]:
        found: list[Parsed] = []
        listed = self.next("[")
        if listed:
            self.take("[")
        while True:
            self.skip()
            if self.kind(0) != "word" or len(self.tokens[0][1]) > 64:
                raise ValueError
            name = self.tokens.pop(0)[1]
            self.take("(")
            found.append((name, self.arguments()))
            blank = self.skip()
            if not self.tokens or (listed and self.next("]")):
                break
            if self.next(",") or self.next(";"):
                self.tokens.pop(0)
            elif not blank:
                raise ValueError
        if listed:
            self.take("]")
        return found

    def arguments(self) -> dict[str, Any]:
        given: dict[str, Any] = {}
        self.skip()
        while not self.next(")"):
            if given:
                self.take(",")
                self.skip()
            if self.kind(0) != "word" or not re.fullmatch(r"\w{1,64}", self.tokens[0][1]):
                raise ValueError
            name = self.tokens.pop(0)[1]
            self.skip()
            self.take("=")
            if name in given:
                raise ValueError
            given[name] = self.value(0)
            self.skip()
        self.take(")")
        return given

    def objects(self) -> list[Parsed]:
        value = self.value(0)
        found = []
        for one in value if isinstance(value, list) else [value]:
            if not isinstance(one, dict) or set(one) not in ({"name", "arguments"}, {"name", "parameters"}):
                raise ValueError
            name, (arguments,) = one["name"], [one[key] for key in one if key != "name"]
            if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][\w.-]{0,63}", name, re.ASCII):
                raise ValueError
            if not isinstance(arguments, dict):
                raise ValueError
            found.append((name, arguments))
        return found

    def value(self, depth: int) -> Any:
        self.skip()
        kind = self.kind(0)
        if kind in ("string", "number"):
            return json.loads(self.tokens.pop(0)[1])
        if kind == "real":
            number = float(self.tokens.pop(0)[1])
            if number in (float("inf"), -float("inf")):
                raise ValueError
            return number
        if kind == "word":
            word = self.tokens.pop(0)[1]
            if word not in WORDS:
                raise ValueError
            return WORDS[word]
        if depth >= 32:
            raise ValueError
        if self.next("["):
            return self.several("[", "]", lambda: self.value(depth + 1))
        pairs = self.several("{", "}", lambda: self.pair(depth + 1))
        if len(dict(pairs)) != len(pairs):
            raise ValueError
        return dict(pairs)

    def pair(self, depth: int) -> tuple[str, Any]:
        self.skip()
        if self.kind(0) != "string":
            raise ValueError
        name = json.loads(self.tokens.pop(0)[1])
        self.skip()
        self.take(":")
        return name, self.value(depth)

    def several(self, first: str, last: str, one: Any) -> list[Any]:
        self.take(first)
        found = []
        self.skip()
        while not self.next(last):
            if found:
                self.take(",")
            found.append(one())
            self.skip()
        self.take(last)
        return found

    def kind(self, at: int) -> str:
        return self.tokens[at][0] if len(self.tokens) > at else ""

    def next(self, sign: str) -> bool:
        return bool(self.tokens) and self.tokens[0] == ("sign", sign)

    def take(self, sign: str) -> None:
        if not self.next(sign):
            raise ValueError
        self.tokens.pop(0)

    def skip(self) -> bool:
        there = self.kind(0) == "blank"
        if there:
            self.tokens.pop(0)
        return there


def same(one: Any, other: Any) -> bool:
    """Whether two JSON values are equal, a number only to a number."""
    if isinstance(one, bool) or isinstance(other, bool) or one is None or other is None:
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, str) or isinstance(other, str):
        return isinstance(one, str) and isinstance(other, str) and one == other
    return isinstance(one, int | float) and isinstance(other, int | float) and one == other


def independent(text: str, target: str) -> tuple[float, float]:
    """The reward, and 1 where the text has calls."""
    try:
        made = Independent(text).calls()
    except ValueError:
        return 0.0, 0.0
    left = [(one["name"], one["arguments"]) for one in json.loads(target)]
    for name, given in made:
        found = [at for at, (of, wanted) in enumerate(left) if of == name and same(given, wanted)]
        if not found:
            return 0.0, 1.0
        left.pop(found[0])
    return float(not left), 1.0
