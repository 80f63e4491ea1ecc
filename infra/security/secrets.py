"""Secrets kept out of what is written for people: configurations, logs, parameters, reports.

A secret is the user:password of an address, the value of a query parameter such as `token` or `X-Amz-Signature`, the
value of a field whose name says so, and what this process holds in an environment variable whose name says so. What is
written has `***` in its place. A process remembers what it has hidden, so that a configuration may travel masked
(Prefect keeps the parameters of a flow, for one) and be whole again where it is used.
"""

import os
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

MASK = "***"
SHORTEST = 6  # characters of an environment variable's value that is looked for; a shorter one would be found anywhere
_WORDS = (
    r"pass(?:word|wd|phrase)?|secret(?:[_-]?(?:access[_-]?)?key)?|(?:access|auth|api|session|security|refresh|id)[_-]?token"
    r"|token|api[_-]?key|access[_-]?key(?:[_-]?id)?|credentials?|signature|sig|auth[_-]?string"
    r"|x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|awsaccesskeyid|account[_-]?key|sas"
)
_FIELD = re.compile(_WORDS, re.IGNORECASE)
_VARIABLE = re.compile(r"(?:^|_)(?:PASSWORD|PASSWD|SECRET|TOKEN|API_KEY|ACCESS_KEY|ACCESS_KEY_ID|AUTH_STRING)(?:_|$)")
# a user without a password is a name, save on the web, where it is a token; `abfs://container@account` is neither
_USERINFO = re.compile(r"(?<=://)[^/@\s'\"]+:[^/\s'\"]*@|(?<=http://)[^/@\s'\"]+@|(?<=https://)[^/@\s'\"]+@")
# also of a libpq connection string: `host=db password=…`
_PARAMETER = re.compile(rf"(?P<name>(?:^|[?&;\s])(?:{_WORDS})=)[^&;#\s'\"]+", re.IGNORECASE)

# settings that hold an address: what the environment completes of these goes to the very host that is named in it
_ADDRESSES = re.compile(
    r"tracking\.uri|cluster\.scheduler|(?:problems|mix\.\d+|evals\.\d+)\.(?:path|verifier)|verifier\.name"
)
# settings that are words for a model, or the names of columns: `End with pass=yes or no` hides nothing
_WORDS_OF = re.compile(r"(?:problems|mix\.\d+|evals\.\d+)\.(?:system|template|prompt|target)|sampling\.stop\.\d+")
_MASKED = re.compile(rf"(?:^|[?&;\s])(?:{_WORDS})=\*\*\*|://\*\*\*@", re.IGNORECASE)  # as `masked` writes it
_HOST = re.compile(r"://(?:[^/@\s]*@)?(?P<host>[^/@?#\s]+)")

_known: dict[str, str] = {}  # what this process has hidden, by how it looks masked


class MaskedError(ValueError):
    """A setting was saved without its secret, and nobody has given it again: the message names it."""


def masked(value: T) -> T:
    """A text, or a tree of mappings and sequences of them, with `***` in the place of every secret."""
    shown: T = _walk(value, lambda text, _: _mask_text(text))
    return shown


def without_userinfo(uri: str) -> str:
    """The address without user and password."""
    return _USERINFO.sub("", uri)


def hidden(value: T) -> T:
    """A configuration as `masked`, but this process remembers what was there, for `revealed`; words for the model stay
    as they are."""
    shown: T = _walk(value, _hide_text)
    return shown


def revealed(value: T, path: str = "") -> T:
    """The tree with what `hidden` has taken out; an address that a variable of the environment holds is found there,
    too. Others may have written the tree: a mask alone, or in any other setting, fetches nothing from the environment.

    Raises MaskedError for a masked text that is known to neither.
    """
    if isinstance(value, str) and _WORDS_OF.fullmatch(path):
        if _MASKED.search(value):
            raise MaskedError(
                f"{path}: {value!r} was saved by an older version without what looked like a secret in it; write it "
                "into the saved configuration as it was"
            )
        return value
    if isinstance(value, str) and MASK in value:
        found = None if value == MASK else _known.get(value) or _from_environment(value, path)
        if found is None:
            raise MaskedError(
                f"{path or 'a setting'}: {value!r} was saved without its secret; give it again by --{path}, or let an "
                "environment variable (MLFLOW_TRACKING_URI, say) hold it"
            )
        return found  # type: ignore[return-value]
    if isinstance(value, Mapping):
        return {key: revealed(inner, f"{path}.{key}".strip(".")) for key, inner in value.items()}  # type: ignore[return-value]
    if isinstance(value, (list, tuple)):
        return type(value)(revealed(inner, f"{path}.{at}") for at, inner in enumerate(value))
    return value


def _from_environment(shown: str, path: str) -> str | None:
    """The address in the environment that looks like this one masked; its host is no secret."""
    host = _HOST.search(shown)
    if not _ADDRESSES.fullmatch(path) or host is None or MASK in host["host"]:
        return None
    return next((each for each in os.environ.values() if masked(each) == shown), None)


def _walk(value: Any, change: Callable[[str, str], str], key: str = "", path: str = "") -> Any:
    """``key`` is the last name in the dotted ``path``, which has the places in lists, too."""
    if isinstance(value, str):
        return MASK if value and _FIELD.fullmatch(key) else change(value, path)
    if isinstance(value, Mapping):
        return {name: _walk(inner, change, str(name), f"{path}.{name}".strip(".")) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_walk(inner, change, key, f"{path}.{at}") for at, inner in enumerate(value))
    return value


def _mask_text(text: str) -> str:
    text = _USERINFO.sub(f"{MASK}@", text)
    text = _PARAMETER.sub(lambda found: found["name"] + MASK, text)
    for name, secret in os.environ.items():
        if len(secret) >= SHORTEST and _VARIABLE.search(name) and secret in text:
            text = text.replace(secret, MASK)
    return text


def _hide_text(text: str, path: str) -> str:
    if _WORDS_OF.fullmatch(path):
        return text
    shown = _mask_text(text)
    if shown != text:
        _known[shown] = text
    return shown
