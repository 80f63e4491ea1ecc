"""Every verifier by its name: the built-in ones are the files of `rl.verifiers.built_in`."""

from functools import cache
from importlib import import_module

from rl.config import REWARD_MODEL, VERIFIERS
from rl.sources import closure, path_of
from rl.verifiers.contract import FUNCTION, MODEL, SERVICE, Declared

ADDRESSES = ("http://", "https://")
JUDGE_NOTHING = {path_of(name) for name in ("rl.records", "rl.verifiers.contract")}
TABLE: dict[str, Declared] = {name: import_module(f"rl.verifiers.built_in.{name}").VERIFIER for name in VERIFIERS}


def declared(name: str) -> Declared:
    """The declaration of a verifier; a name that is neither built in nor an address is a function of the user's."""
    if name.startswith(REWARD_MODEL):
        return MODEL
    return TABLE.get(name) or (SERVICE if name.startswith(ADDRESSES) else FUNCTION)


@cache
def source(name: str) -> str:
    """The text of every file of ours that a built-in verifier judges by; nothing for another one."""
    if name not in TABLE:
        return ""
    module = TABLE[name].module
    files = [path_of(each) for each in (f"rl.verifiers.built_in.{name}", module) if each]
    return "".join(file.read_text("utf-8") for file in closure(files, JUDGE_NOTHING))
