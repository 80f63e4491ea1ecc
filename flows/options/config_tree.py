"""The root of a configuration for Prefect's form and API: sections in short, as in YAML, the usual ones first.

Prefect's form sorts the fields by `position`, shows a choice of schemas by buttons, and begins with the one that fits
the default: so a section whose default is text or null takes one line until it is opened.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from flows.options.tree import RENAMED, RENAMED_SECTIONS, items_of, section_of

NULL = {"type": "null", "title": "default"}


class ConfigTree(BaseModel):
    """A configuration of sections. A section's bare value sets the leaf that is its shorthand; null is its default."""

    # an infinite bound is one: as null, which is not the default, it would be the default when it is read again
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")
    first: ClassVar[tuple[str, ...]] = ()  # the fields that come before the others in a form
    left_out: ClassVar[tuple[str, ...]] = ()  # sections that a form sends as null until they are filled in

    @model_validator(mode="before")
    @classmethod
    def _in_short(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        whole = {}
        for given_name, value in given.items():
            name: Any = given_name if given_name in cls.model_fields else RENAMED_SECTIONS.get(given_name, given_name)
            field = cls.model_fields.get(name)
            section = section_of(field) if field is not None else None
            leaf = getattr(section, "shorthand", None)
            if section is not None and value is None:
                continue
            short = leaf is not None and isinstance(value, str)
            whole[name] = {leaf: value} if short else value
        for was, now in RENAMED.items():
            (section_name, old), new = was.split("."), now.rpartition(".")[2]
            if isinstance(inside := whole.get(section_name), Mapping) and old in inside:
                whole[section_name] = {new if name == old else name: value for name, value in inside.items()}
        return whole

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core))
        order = [*cls.first, *(name for name in cls.model_fields if name not in cls.first)]
        for name, field in cls.model_fields.items():
            shown = schema["properties"][name]
            if section := section_of(field):
                shown = _section_schema(field, section, shown, left_out=name in cls.left_out)
            elif (section := items_of(field)) and hasattr(section, "shorthand"):
                shown = {**shown, "items": {"anyOf": [_leaf(section), shown["items"]]}}
            # pydantic gives a section none, and a form heads it "Field" then
            title = shown.get("title", name.replace("_", " ").title())
            schema["properties"][name] = {**shown, "title": title, "position": order.index(name)}
        return schema


def _section_schema(
    field: FieldInfo, section: type[BaseModel], shown: JsonSchemaValue, left_out: bool
) -> JsonSchemaValue:
    inside = {"$ref": shown["$ref"]}
    outside = {key: value for key, value in shown.items() if key != "$ref"}
    default = field.get_default()
    shorthand = getattr(section, "shorthand", None)
    if shorthand is not None:
        leaf = _leaf(section)
        text = getattr(default, shorthand)
        short = default == section.model_validate({shorthand: text})
        words = outside.get("description", leaf.pop("description", ""))
        if left_out:
            return {**outside, "anyOf": [NULL, leaf, inside], "description": words, "default": None}
        return {**outside, "anyOf": [leaf, inside], "description": words, **({"default": text} if short else {})}
    if default == section():
        words = outside.get("description", (section.__doc__ or "").strip())
        return {**outside, "anyOf": [NULL, inside], "description": words, "default": None}
    return shown  # its own default is none that the section's fields show


def _leaf(section: type[BaseModel]) -> JsonSchemaValue:
    """The schema of the section's shorthand."""
    name: str = section.shorthand  # type: ignore[attr-defined]
    leaf = section.model_json_schema()["properties"][name]
    return {**{key: value for key, value in leaf.items() if key != "default"}, "title": name}
