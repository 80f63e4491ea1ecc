"""Every verifier by its name: the built-in ones are the files of `rl.verifiers.built_in`."""

import ast
from functools import cache
from importlib import import_module
from pathlib import Path

from rl.config import VERIFIERS
from rl.verifiers.contract import FUNCTION, SERVICE, Declared

RL = Path(__file__).parents[1]
ADDRESSES = ("http://", "https://")
JUDGE_NOTHING = {"records.py", "verifiers/contract.py"}
TABLE: dict[str, Declared] = {name: import_module(f"rl.verifiers.built_in.{name}").VERIFIER for name in VERIFIERS}


def declared(name: str) -> Declared:
    """The declaration of a verifier; a name that is neither built in nor an address is a function of the user's."""
    return TABLE.get(name) or (SERVICE if name.startswith(ADDRESSES) else FUNCTION)


@cache
def source(name: str) -> str:
    """The text of every file of ours that a built-in verifier judges by; nothing for another one."""
    if name not in TABLE:
        return ""
    module = TABLE[name].module
    left = [f"verifiers/built_in/{name}.py", *([_file(module)] if module else [])]
    found: dict[str, str] = {}
    while left:
        part = left.pop(0)
        found[part] = (RL / part).read_text("utf-8")
        imports = [node for node in ast.walk(ast.parse(found[part])) if isinstance(node, ast.ImportFrom)]
        named = [name for of in imports for name in (of.module, *(f"{of.module}.{each.name}" for each in of.names))]
        files = {_file(name) for name in named if name and name.startswith("rl.")}
        left += {file for file in files - {*found, *left, *JUDGE_NOTHING} if (RL / file).is_file()}
    return "".join(found[part] for part in sorted(found))


def _file(module: str) -> str:
    return module.removeprefix("rl.").replace(".", "/") + ".py"
