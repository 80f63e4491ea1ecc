"""YAML for configurations: without aliases, and no key twice."""

from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Refuses equal keys, of which PyYAML silently takes the last, and aliases: a few lines of them are a tree of
    billions."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(
                None, None, f"*{event.anchor} is an alias, which is not taken; write out what it stands for",
                event.start_mark,
            )  # fmt: skip
        return super().compose_node(parent, index)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        try:
            str(node.value).encode()
        except UnicodeEncodeError:
            raise yaml.constructor.ConstructorError(None, None, "half of a character", node.start_mark) from None
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for i, key in enumerate(keys):
            if key.value in [earlier.value for earlier in keys[:i]]:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value} appears twice", key.start_mark)
        return super().construct_mapping(node, deep)


def load_yaml(content: str | bytes) -> Any:
    """The content of a YAML text. Raises yaml.YAMLError, and UnicodeDecodeError for bytes that are no text."""
    try:
        return yaml.load(content, _Loader)
    except RecursionError:
        raise yaml.YAMLError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise
    except ValueError as error:  # a number of thousands of digits, a date that is none
        raise yaml.YAMLError(str(error).partition(";")[0]) from None
