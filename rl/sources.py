"""Which files of `rl` something is computed by, so that their text can be part of its name."""

import ast
from collections.abc import Collection, Iterable
from pathlib import Path

RL = Path(__file__).parent


def path_of(module: str) -> Path:
    """The file of a module of `rl`."""
    path = RL.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def closure(files: Iterable[Path], without: Collection[Path] = ()) -> list[Path]:
    """These files and all of `rl` that they import, directly or not, wherever in a file; in order of their paths."""
    found, left = set[Path](), list(files)
    while left:
        file = left.pop()
        found.add(file)
        imports = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.ImportFrom)]
        named = {name for of in imports for name in (of.module, *(f"{of.module}.{each.name}" for each in of.names))}
        paths = {path_of(name) for name in named if name and name.split(".")[0] == "rl"}
        left += {path for path in paths - found - {*left, *without} if path.is_file()}
    return sorted(found)
