"""A pydantic configuration tree as options with dotted paths, and back."""

import functools
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from flows.options.plain_yaml import load_yaml

# the names in files and saved runs of older versions
RENAMED = {"batch.refill": "batch.oversample"}
RENAMED_SECTIONS = {"loss": "algorithm"}
NULL = ("null", "none")  # how a command line writes None
TYPES = {
    "boolean": ("true or false", "{true,false}"),
    "integer": ("a whole number", "INT"),
    "number": ("a number", "NUMBER"),
    "string": ("text", "TEXT"),
    "array": ("a comma-separated list", "A,B"),
    "object": ("a mapping in YAML, such as {beta: 0.1}", "YAML"),
}
BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} long",
    "maxLength": "at most {} long",
    "minItems": "at least {} of them",
    "maxItems": "at most {} of them",
    "pattern": "matching {}",
}


@dataclass(frozen=True)
class Option:
    """A node of the configuration tree: a leaf, or a section of further options."""

    path: str  # dotted, "policy.model"
    field: FieldInfo
    section: type[BaseModel] | None  # None: a leaf
    schema: Mapping[str, Any]  # of a leaf: its JSON schema, that of None left out
    items: type[BaseModel] | None = None  # of a leaf that is a list of sections

    @property
    def nullable(self) -> bool:
        return type(None) in get_args(self.field.annotation)

    @property
    def shorthand(self) -> str | None:
        """The path of the leaf that a bare value of this section stands for."""
        leaf = getattr(self.section, "shorthand", None)
        return None if leaf is None else f"{self.path}.{leaf}"

    @property
    def bounds(self) -> list[str]:
        return [words.format(self.schema[key]) for key, words in BOUNDS.items() if key in self.schema]

    @property
    def allowed(self) -> str:
        """The values that the option takes, in words."""
        if self.items is not None:
            return (
                f"a list in YAML, such as [{{{', '.join(f'{name}: …' for name in list(self.items.model_fields)[:2])}}}]"
            )
        kind = _choices(self.schema, "one of {}", ", ") or TYPES[self.schema["type"]][0]
        items = _choices(self.schema.get("items", {}), " of {}", ", ")
        return ", ".join([f"{kind}{items}{' or null' * self.nullable}", *self.bounds])

    @property
    def metavar(self) -> str:
        if self.items is not None:
            return "YAML"
        kind = _choices(self.schema, "{{{}}}", ",") or _choices(self.schema.get("items", {}), "{{{}}},...", ",")
        return (kind or TYPES[self.schema["type"]][1]) + "|null" * self.nullable

    def parse(self, text: str) -> Any:
        """A word of a command line as a value that pydantic can validate."""
        return None if self.nullable and text.lower() in NULL else self.split(text)

    def split(self, value: Any) -> Any:
        """Text as a list, where the option is one: comma-separated, or in YAML for a list of sections, where
        comma-separated text is a list of bare values. Any other value as it is."""
        if isinstance(value, str) and self.items is not None:
            try:
                given = load_yaml(value)
            except yaml.YAMLError:
                return value  # which pydantic refuses
            if not isinstance(given, str):
                return [given] if isinstance(given, Mapping) else given if given is not None else []
        if isinstance(value, str) and self.schema.get("type") == "object":
            try:
                return load_yaml(value)
            except yaml.YAMLError:
                return value  # which pydantic refuses
        if isinstance(value, str) and self.schema.get("type") == "array":
            return [item.strip() for item in value.split(",")] if value.strip() else []
        return value


@functools.cache
def known_options(model: type[BaseModel]) -> dict[str, Option]:
    """Every node below `model` by its dotted path, in order of declaration, a section before its options.

    Raises TypeError for a programmer's mistake: a field without a default, a nullable section, a choice of types, a
    type without a notation on a command line.
    """
    found: dict[str, Option] = {}
    # Each model's schema is its own: only sections and enums appear as references in it.
    schemas = model.model_json_schema(by_alias=False).get("properties", {})
    for name, field in model.model_fields.items():
        section = section_of(field)
        items = items_of(field)
        schema = schemas[name] if section is None else {}
        kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
        found[name] = option = Option(name, field, section, kinds[0], items)
        if field.is_required():
            raise TypeError(f"{model.__name__}.{name}: has no default")
        if items is not None:
            known_options(items)  # refused now, not when a mistake is explained
        if section is not None:
            for path, below in known_options(section).items():
                found[f"{name}.{path}"] = replace(below, path=f"{name}.{path}")
            if option.shorthand and option.shorthand not in found:
                raise TypeError(f"{section.__name__}.shorthand names no field of it: {option.shorthand}")
        elif len(kinds) > 1 or not (kinds[0].get("type") in TYPES or _choices(kinds[0], "{}", "")):
            raise TypeError(f"{model.__name__}.{name}: no command-line notation for {field.annotation}")
    return found


def leaf_values(config: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of a configuration as (dotted path, value)."""
    for name in type(config).model_fields:
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            yield from leaf_values(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def changed_leaves(before: BaseModel, now: BaseModel) -> Iterator[tuple[str, Any, Any]]:
    """(dotted path, value before, value now) of every leaf that differs between two configurations of one kind."""
    values = dict(leaf_values(before))
    return ((path, values[path], value) for path, value in leaf_values(now) if values[path] != value)


def flatten(options: Mapping[str, Option], given: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a nested mapping by dotted path; a key may itself be dotted, a section a bare value."""
    for key, value in given.items():
        path = _renamed(f"{prefix}{key}", options)
        option = options.get(path)
        section = option if option is not None and option.section is not None else None
        if isinstance(value, Mapping) and (section or (option is None and value)):
            yield from flatten(options, value, f"{path}.")
        elif section and value is None:
            continue  # "loss:" with nothing below it
        elif section and section.shorthand:
            yield section.shorthand, value
        else:
            yield path, value


def _renamed(path: str, options: Mapping[str, Option]) -> str:
    """The dotted path by which an option is known now."""
    section, dot, rest = path.partition(".")
    now = path if section in options else f"{RENAMED_SECTIONS.get(section, section)}{dot}{rest}"
    return RENAMED.get(now, now)


def superseded(options: Mapping[str, Option], below: Mapping[str, Any], above: Mapping[str, Any]) -> set[str]:
    """The paths of ``below``, values by dotted path, that mean nothing any more under those of ``above``: what a
    section has `by_kind`, where it is of another kind there."""
    return {
        f"{path}.{name}"
        for path, option in options.items()
        if (kind := option.shorthand) is not None and kind in above and kind in below and above[kind] != below[kind]
        for name in getattr(option.section, "by_kind", ())
    }


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted path as the nested mapping that the tree's model validates."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        functools.reduce(lambda node, key: node.setdefault(key, {}), sections, tree)[name] = value
    return tree


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a field holds, None for a leaf."""
    kind = field.annotation
    return kind if inspect.isclass(kind) and issubclass(kind, BaseModel) else None


def items_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section of which a field holds any number: tuple[Section, ...]."""
    if get_origin(field.annotation) is not tuple:
        return None
    first, *_ = get_args(field.annotation) or (None,)
    return first if inspect.isclass(first) and issubclass(first, BaseModel) else None


def _choices(schema: Mapping[str, Any], words: str, between: str) -> str:
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    return words.format(between.join(map(str, choices))) if choices else ""
