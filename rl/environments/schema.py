"""The JSON schema of a tool, by its type hints and docstring, and arguments checked against it.

It is that of transformers' `get_json_schema` (transformers/utils/chat_template_utils.py, 5.23), which imports torch if
it can; here nothing is imported that a small process should not hold.
"""

import inspect
import json
import re
import types
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

Schema = dict[str, Any]

TYPES: dict[Any, Schema] = {
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    bool: {"type": "boolean"},
    type(None): {"type": "null"},
    list: {"type": "array"},
    tuple: {"type": "array"},
    dict: {"type": "object"},
    Any: {},
}
VALUES = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
MOST_SHOWN = 60  # characters of a value in a message

_SECTION = r"[\n\s]*(?:{}|\Z)"
_SUMMARY = re.compile(r"^(.*?)" + _SECTION.format("Args:|Returns:|Raises:"), re.DOTALL)
_ARGUMENTS = re.compile(r"\n\s*Args:\n(.*?)" + _SECTION.format("Returns:|Raises:"), re.DOTALL)
_RETURNS = re.compile(r"\n\s*Returns:\n\s*(.*?)" + _SECTION.format("Raises:"), re.DOTALL)
_ARGUMENT = re.compile(r"(?:^|\n)([ \t]*)(\w+):\s*(.*?)\s*(?=\n(?!\1[ \t])[ \t]*\w+:|\Z)", re.DOTALL)
_CHOICES = re.compile(r"\(choices:\s*(.*?)\)\s*$", re.IGNORECASE)


class SchemaError(ValueError):
    """A method that no schema can be made of: what it lacks, and what to write."""


class UnfitError(ValueError):
    """Arguments that a tool does not take: one line, for the policy."""


def schema_of(tool: Callable[..., Any]) -> Schema:
    """The schema of a function, or of a method, whose first parameter `self` is left out. Raises SchemaError."""
    name = tool.__name__
    documented = (inspect.getdoc(tool) or "").strip()
    if not documented:
        raise SchemaError(f"{name} has no docstring, which the policy is shown; one that is no tool begins with _")
    parameters = inspect.signature(tool).parameters
    hints = get_type_hints(tool)
    described = _described(documented)
    properties = {}
    for each in parameters.values():
        if each.name == "self" and each.name not in hints:
            continue
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise SchemaError(f"{name}: {each} cannot be given by name, as a call's arguments are")
        if each.name not in hints:
            raise SchemaError(f"{name}: its argument {each.name} has no type; write {each.name}: int, or what it is")
        if each.name not in described:
            raise SchemaError(
                f"{name}: its docstring does not describe {each.name}; below a line 'Args:' write '{each.name}: …'"
            )
        properties[each.name] = _argument(name, each.name, hints[each.name], described[each.name])
    required = [name for name in properties if parameters[name].default is inspect.Parameter.empty]
    made: Schema = {"type": "object", "properties": properties, **({"required": required} if required else {})}
    function = {"name": name, "description": _summary(documented), "parameters": made}
    return {"type": "function", "function": {**function, **_returned(documented, hints)}}


def fitted(arguments: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The arguments of a call by the ``parameters`` of a tool's schema; a whole number may be written 3.0. Raises
    UnfitError."""
    properties = schema["properties"]
    if unknown := [name for name in arguments if name not in properties]:
        there = f"it takes {', '.join(properties)}" if properties else "it takes none"
        raise UnfitError(f"no argument {_short(unknown[0])}; {there}")
    if lacking := [name for name in schema.get("required", ()) if name not in arguments]:
        raise UnfitError(f"no value for {', '.join(lacking)}")
    return {name: fitting(value, properties[name], name) for name, value in arguments.items()}


def fitting(value: Any, schema: Schema, name: str) -> Any:
    """A value that a schema allows. Raises UnfitError, which begins with ``name``."""
    if value is None and schema.get("nullable"):
        return None
    if "enum" in schema:
        for one in schema["enum"]:
            if type(one) is type(value) and one == value:
                return value
        raise UnfitError(f"{name}: {_short(value)} is none of {json.dumps(schema['enum'])}")
    for each in schema.get("anyOf", ()):
        try:
            return fitting(value, each, name)
        except UnfitError:
            continue
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if not kinds and "anyOf" not in schema:
        return value
    if "integer" in kinds and "number" not in kinds and isinstance(value, float) and value.is_integer():
        return int(value)
    if not any(_is(value, kind) for kind in kinds):
        raise UnfitError(f"{name}: {_short(value)} is no {' or '.join(kinds) or 'such value'}")
    if isinstance(value, list):
        return _elements(value, schema, name)
    if isinstance(value, dict) and "additionalProperties" in schema:
        inside = schema["additionalProperties"]
        return {key: fitting(one, inside, f"{name}.{key[:MOST_SHOWN]}") for key, one in value.items()}
    return value


def _elements(values: list[Any], schema: Schema, name: str) -> list[Any]:
    if "items" in schema:
        return [fitting(one, schema["items"], f"{name}[{at}]") for at, one in enumerate(values)]
    if "prefixItems" not in schema:
        return values
    each = schema["prefixItems"]
    if len(values) != len(each):
        raise UnfitError(f"{name}: has {len(values)} values, not {len(each)}")
    return [fitting(one, of, f"{name}[{at}]") for at, (one, of) in enumerate(zip(values, each, strict=True))]


def _is(value: Any, kind: str) -> bool:
    match kind:
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
    return VALUES.get(type(value)) == kind


def _argument(tool: str, name: str, hint: Any, description: str) -> Schema:
    try:
        made = _of_hint(hint)
    except SchemaError as error:
        raise SchemaError(f"{tool}: its argument {name} is {error}") from None
    if choices := _CHOICES.search(description):
        try:
            made["enum"] = [one.strip() if isinstance(one, str) else one for one in json.loads(choices[1])]
        except (ValueError, TypeError):
            raise SchemaError(f'{tool}: the choices of {name} are no list such as ["a", "b"]') from None
        description = description[: choices.start()].strip()
    return {**made, "description": description}


def _of_hint(hint: Any) -> Schema:
    """The schema of a type. Raises SchemaError, which says what it is."""
    origin, inside = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _one_of([member.value for member in hint], hint)
    if origin is None:
        try:
            return dict(TYPES[hint])
        except (KeyError, TypeError):
            raise SchemaError(f"{hint!r}, which JSON cannot hold") from None
    if origin is Union or origin is types.UnionType:
        return _of_union(inside)
    if origin is Literal:
        return _one_of(list(inside), hint)
    if origin in TYPES and not inside:  # typing.List and the like
        return dict(TYPES[origin])
    if origin is list:
        return {"type": "array", "items": _of_hint(inside[0])}
    if origin is tuple and len(inside) > 1 and ... not in inside:
        return {"type": "array", "prefixItems": [_of_hint(each) for each in inside]}
    if origin is dict and len(inside) == 2:
        return {"type": "object", "additionalProperties": _of_hint(inside[1])}
    raise SchemaError(f"{hint!r}: write a list, of a length of its own")


def _of_union(inside: tuple[Any, ...]) -> Schema:
    each = [_of_hint(one) for one in inside if one is not type(None)]
    if len(each) == 1:
        made = each[0]
    elif all(one.keys() == {"type"} and isinstance(one["type"], str) for one in each):
        names = sorted({one["type"] for one in each})
        made = {"type": names[0] if len(names) == 1 else names}
    else:
        made = {"anyOf": each}
    return {**made, "nullable": True} if type(None) in inside else made


def _one_of(values: list[Any], hint: Any) -> Schema:
    if not values or any(type(value) not in VALUES for value in values):
        raise SchemaError(f"{hint!r}, whose values JSON cannot hold")
    kinds = list(dict.fromkeys(VALUES[type(value)] for value in values))
    return {"type": kinds[0] if len(kinds) == 1 else kinds, "enum": values}


def _summary(documented: str) -> str:
    found = _SUMMARY.search(documented)
    assert found is not None  # it may be empty
    return found[1].strip()


def _described(documented: str) -> dict[str, str]:
    """The arguments that a docstring describes, by name."""
    found = _ARGUMENTS.search(documented)
    if found is None:
        return {}
    lines = "\n".join(line for line in found[1].split("\n") if line.strip())
    return {name: re.sub(r"\s*\n+\s*", " ", text.strip()) for _, name, text in _ARGUMENT.findall(lines)}


def _returned(documented: str, hints: dict[str, Any]) -> Schema:
    """The part of a schema on what is returned, which a policy is shown where it can be said."""
    try:
        made = _of_hint(hints["return"])
    except (KeyError, SchemaError):
        return {}
    found = _RETURNS.search(documented)
    return {"return": {**made, **({"description": found[1].strip()} if found else {})}}


def _short(value: object) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 1]}…"
