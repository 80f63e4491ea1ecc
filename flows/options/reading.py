"""The command line and YAML files, read into a frozen pydantic configuration tree.

Four layers, the lowest first: the tree's defaults, a base, a YAML file, dotted overrides. Each is flattened to dotted
paths before they are merged, so that a mistake is reported by its layer and the name that the user wrote.
"""

import argparse
import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import fsspec
import yaml
from pydantic import BaseModel, ValidationError

from flows.options.plain_yaml import load_yaml
from flows.options.tree import Option, changed_leaves, flatten, known_options, leaf_values, nest, superseded
from flows.options.usual_names import unknown
from infra.storage.usable import StorageError, named_storage_errors

M = TypeVar("M", bound=BaseModel)


class OptionError(ValueError):
    """A mistake in what the user configured: one line for each, the first one first."""


@dataclass(frozen=True)
class Given:
    """A value of one layer."""

    path: str
    value: Any
    origin: str = ""  # the begin of a message: "my.yaml: ", or "--" for the command line

    @property
    def name(self) -> str:
        return f"{self.origin}{self.path}"


class _Override(argparse.Action):
    """Collects dotted options in `overrides`, the latest last; `dest` alone would mix them with the parser's own."""

    def __call__(
        self, _parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        path = (option or "")[2:]
        others = {key: text for key, text in namespace.overrides.items() if key != path}
        namespace.overrides = {**others, path: value}


def add_options(parser: argparse.ArgumentParser, model: type[BaseModel]) -> None:
    """Adds `--config FILE` and a `--dotted.path` option for every leaf of `model`.

    The parsed namespace has `config` (str or None) and `overrides` (dotted path to text): what `read_config` takes.
    """
    options, defaults = known_options(model), dict(leaf_values(model()))
    parser.allow_abbrev = False
    parser.usage = parser.usage or "%(prog)s [options]"
    parser.set_defaults(overrides={})
    settings = parser.add_argument_group("settings")
    settings.add_argument("--config", metavar="FILE.yaml", help="a file of the settings below; options win over it")
    groups = {"": settings}
    for path, option in options.items():
        if option.section is None:
            above = path.rpartition(".")[0]
            same = above in options and options[above].shorthand == path
            group, metavar = groups[above], option.metavar
            text = f"the same as --{above}" if same else _help(option, defaults)
        else:
            words = option.field.description or inspect.cleandoc(option.section.__doc__ or "").partition("\n\n")[0]
            group = groups[path] = parser.add_argument_group(path, words)
            if option.shorthand is None:
                continue
            leaf = options[option.shorthand]
            metavar, text = leaf.metavar, _help(leaf, defaults)
        escaped = text.replace("%", "%%")
        group.add_argument(f"--{path}", action=_Override, default=argparse.SUPPRESS, metavar=metavar, help=escaped)


def read_config(
    model: type[M],
    *,
    file: str | None,
    overrides: Mapping[str, str],
    base: Mapping[str, Any] | None = None,
    defaults: bool = True,
) -> M:
    """The configuration of `base`, then the YAML `file` (any fsspec path), then dotted `overrides`.

    Without `defaults`, `model_fields_set` of the tree and its sections is what was given; the tree must then have no
    section whose default is another than that section's own.

    Raises OptionError with a line for each unknown key or unacceptable value, by the name in its layer.
    """
    options = known_options(model)
    flat = {path: Given(path, value) for path, value in leaf_values(model()) if defaults}
    saved = _layer(options, base or {}, "saved configuration: ", Option.split)
    written = _layer(options, _read_yaml(file), f"{file}: ", Option.split) if file is not None else []
    asked = _over(options, written, _layer(options, overrides, "--", Option.parse))
    given = _over(options, saved, asked)
    values = {one.path: one.value for one in given}
    if mistakes := [mistake for one in given if (mistake := _misplaced(options, one, values))]:
        raise OptionError("\n".join(mistakes))
    flat |= {one.path: one for one in given}
    try:
        # what is asked for and is none of the algorithm's options is refused even where it equals its default
        context = {"asked": {one.path for one in asked}}
        return model.model_validate(nest({path: one.value for path, one in flat.items()}), context=context)
    except ValidationError as error:
        raise OptionError("\n".join(_explain(error, options, flat))) from None


def to_yaml(config: BaseModel) -> str:
    """The whole tree, defaults included, as YAML from which `read_config` makes an equal one."""
    # Not allow_unicode: it writes line separators like U+0085 bare, which reading folds into spaces.
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=120)


def differences(saved: BaseModel, now: BaseModel) -> list[str]:
    """A line for each leaf that differs: "loss.name: saved 'reinforce', now 'grpo'"."""
    return [f"{path}: saved {was!r}, now {value!r}" for path, was, value in changed_leaves(saved, now)]


def _help(option: Option, defaults: Mapping[str, Any]) -> str:
    bounds = [bound for bound in option.bounds if bound != "at least 1 long"]  # obvious
    notes = ", ".join([*bounds, f"default {_shown(defaults[option.path])}"])
    return f"{option.field.description or ''} ({notes})".lstrip()


def _shown(value: Any) -> str:
    """A value as the command line would write it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (tuple, list)):
        return ",".join(map(_shown, value)) or "empty"
    return str(value) or "empty"


def _layer(
    options: Mapping[str, Option], entries: Mapping[Any, Any], origin: str, read: Callable[[Option, Any], Any]
) -> list[Given]:
    return [
        Given(path, read(options[path], value) if path in options else value, origin)
        for path, value in flatten(options, entries)
    ]


def _over(options: Mapping[str, Option], below: Sequence[Given], above: Sequence[Given]) -> list[Given]:
    """One layer over another."""
    old = superseded(options, *({one.path: one.value for one in layer} for layer in (below, above)))
    return [*(one for one in below if one.path not in old), *above]


def _misplaced(options: Mapping[str, Option], given: Given, values: Mapping[str, Any]) -> str | None:
    """The mistake in a value's key, or None; ``values`` are those of all keys."""
    option = options.get(given.path)
    if option is None:
        what, dashes = ("unknown option --", "--") if given.origin == "--" else (f"{given.origin}unknown key ", "")
        return unknown(given.path, options, what, dashes, values)
    if option.section is not None:
        inner = ", ".join(f"{given.path}.{name}" for name in option.section.model_fields)
        return f"{given.name}: {given.value!r} is not allowed; it is a section: give {inner}"
    return None


def _explain(error: ValidationError, options: Mapping[str, Option], flat: Mapping[str, Given]) -> list[str]:
    lines: dict[str, str] = {}  # by path: the first is enough
    for detail in error.errors(include_url=False):
        path = ""
        for part in detail["loc"]:
            longer = f"{path}.{part}" if path else str(part)
            if longer not in options:
                break  # an element's index
            path = longer
        option = options.get(path)
        name = flat[path].name if path in flat else path
        own = detail.get("ctx", {}).get("error")  # what a validator of the tree raised
        inner = detail["loc"][path.count(".") + 1 :] if path else ()
        if option is not None and option.items is not None and inner:
            path, name, option = _inside(option, name, inner)
        if own is not None:
            value = f" {detail['input']!r}" if option is not None and option.section is None else ""
            line = ": ".join(filter(None, [f"{name}{value}", str(own)]))
        elif option is None or option.section is not None:
            line = ": ".join(filter(None, [name, detail["msg"]]))
        else:
            finite = ", finite" if detail["type"] == "finite_number" else ""
            line = f"{name}: {detail['input']!r} is not allowed; give {option.allowed}{finite}"
        lines.setdefault(path, " ".join(line.split()))
    return list(lines.values())


def _inside(of: Option, name: str, inner: Sequence[Any]) -> tuple[str, str, Option | None]:
    """The path, the name and the option of a value within a list of sections: mix[0].weight."""
    index, *below = inner
    assert of.items is not None
    dotted = ".".join(map(str, below))
    option = known_options(of.items).get(dotted)
    place = f"[{index}]" + (f".{dotted}" if below else "")
    if below and option is None:
        near = difflib.get_close_matches(dotted, known_options(of.items), n=1)
        place += f" (did you mean {near[0]}?)" if near else ""
    return f"{of.path}{place}", f"{name}{place}", option


def _read_yaml(file: str) -> Mapping[Any, Any]:
    try:
        with named_storage_errors(file), fsspec.open(file, "rb") as stream:
            content = load_yaml(stream.read())
    except StorageError as error:
        raise OptionError(str(error)) from None
    except FileNotFoundError:
        raise OptionError(f"{file}: no such file") from None
    except yaml.MarkedYAMLError as error:
        at = (
            f"line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1}: "
            if error.problem_mark
            else ""
        )
        raise OptionError(f"{file}: not valid YAML: {at}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise OptionError(f"{file}: not valid YAML: {' '.join(str(error).split())}") from None
    except (OSError, ValueError, ImportError) as error:
        raise OptionError(f"{file}: cannot be read: {' '.join(str(error).split())}") from None
    if content is None:
        raise OptionError(f"{file}: is empty; write settings into it, or leave out --config")
    if not isinstance(content, Mapping):
        raise OptionError(f"{file}: holds {type(content).__name__}, not settings as `name: value`")
    return content
