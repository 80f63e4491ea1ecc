"""What the options are called elsewhere: the tables of `usual_names.yaml`."""

import difflib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from flows.options.plain_yaml import load_yaml


@cache
def _tables() -> Any:
    return load_yaml(Path(__file__).with_suffix(".yaml").read_bytes())


def usual_names() -> dict[str, str]:
    """The option here, by its name elsewhere."""
    return {name: option for option, names in _tables()["usual_names"].items() for name in names}


def not_here() -> dict[str, str]:
    """Why there is no such option here, by its name elsewhere."""
    return {name: each["why"] for each in _tables()["not_here"] for name in each["names"]}


def is_file_of_problems(word: str) -> bool:
    """Whether a word looks like a file of problems, or a pattern of such files."""
    name = word.lower().removesuffix(".gz")
    return name.endswith((".csv", ".tsv", ".json", ".jsonl", ".parquet"))


def unknown(path: str, known: Iterable[str], what: str, dashes: str, values: Mapping[str, Any] | None = None) -> str:
    """A line that `what` + `path` is unknown, with the known name that is probably meant, or why there is none: the
    name has that meaning elsewhere, is near, has the same last part, or is near to a name elsewhere; or with where a
    class of the user's, which the `values` name, has its options."""
    known = list(known)
    section, _, name = path.rpartition(".")
    own = str((values or {}).get(f"{section}.name", (values or {}).get(section)))
    if f"{section}.options" in known and ".py:" in own:
        return f"{what}{path}; {own} is given its options by {dashes}{section}.options '{{{name}: VALUE}}'"
    last = path.rpartition(".")[2].lower().replace("-", "_")
    usual = {name: option for name, option in usual_names().items() if option in known}
    if last not in usual and (reason := not_here().get(last)) is not None:
        return f"{what}{path}: {reason}"
    namesakes = [name for name in known if name.rpartition(".")[2] == last]
    near = (
        [usual[last]]
        if last in usual
        else difflib.get_close_matches(path, known, n=1)
        or difflib.get_close_matches(path, namesakes, n=1, cutoff=0)
        or [usual[name] for name in difflib.get_close_matches(last, usual, n=1, cutoff=0.8)]
    )
    return f"{what}{path}" + (f"; did you mean {dashes}{near[0]}?" if near else "")
