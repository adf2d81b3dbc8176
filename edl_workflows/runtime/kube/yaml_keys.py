"""Keys of maps in YAML, as the API server and kubectl read them: they are texts, whatever they look like."""

from typing import Any

import yaml


class TextKeys(yaml.constructor.SafeConstructor):
    """Part of a loader: it makes a key a text before the map is built, or refuses it.

    Python builds a map of numbers in quadratic time if their hashes are equal, as those of all multiples of
    2⁶¹ - 1 are: a text of 1 MiB would take many seconds. The hashes of texts are not known to its author.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Build a map.

        Raises:
            ConstructorError: a key is neither a text nor a number nor a Boolean.
        """
        if isinstance(node, yaml.MappingNode):
            self.flatten_mapping(node)
            return {
                self._read_key(key, node): self.construct_object(value, deep=deep)
                for key, value in node.value
            }
        return super().construct_mapping(node, deep)

    def _read_key(self, node: Any, parent: Any) -> str:
        key = self.construct_object(node, deep=True) if isinstance(node, yaml.ScalarNode) else node.value
        if isinstance(key, bool):
            return str(key).lower()
        if isinstance(key, str | int | float):
            return str(key)
        raise yaml.constructor.ConstructorError(
            "while constructing a mapping",
            parent.start_mark,
            "a key is neither a text nor a number nor true or false; put it in quotes",
            node.start_mark,
        )
