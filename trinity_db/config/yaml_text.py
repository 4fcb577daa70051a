"""YAML for configurations: YAML 1.2's scalars, with limits on size and depth."""

import re
from typing import Any, ClassVar

import yaml

MAX_VALUES = 20_000  # most values of a configuration file; each use of an alias counts again
MAX_DEPTH = 30  # nesting of sections
MAX_ERROR = 500  # longest error message, in characters


class _Loader(yaml.SafeLoader):
    """YAML 1.2's scalars: only true and false are booleans, 1e-5 is a number, a date is text.

    A duplicate key is an error, since only the last one would count.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Checked during parsing: later, values merged with << would look like duplicates.
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        known: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in known:
                    raise yaml.composer.ComposerError(
                        None, None, f"the key '{key.value}' appears twice; keep one of them", key.start_mark
                    )
                known.add((key.tag, key.value))
        return node


_TAG = "tag:yaml.org,2002:"
_KINDS = (None, *(_TAG + kind for kind in ("null", "bool", "int", "float", "str", "seq", "map")))
_Loader.yaml_constructors = {kind: yaml.SafeLoader.yaml_constructors[kind] for kind in _KINDS}
_DIGITS = "0123456789"
for _tag, _pattern, _beginnings in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)", list("-+" + _DIGITS)),
    (
        "float",
        r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+." + _DIGITS),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(_TAG + _tag, re.compile(f"(?:{_pattern})$"), _beginnings)


def parsed(text: str) -> Any:
    """Parse a YAML text.

    Raises:
        yaml.YAMLError: if it is not YAML, or exceeds the limits.
    """
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _measure(node, {})
        return loader.construct_document(node)
    except RecursionError:
        raise yaml.YAMLError(f"sections are nested more than {MAX_DEPTH} deep") from None
    except ValueError as error:  # a number with thousands of digits
        raise yaml.YAMLError(one_line(error)) from None
    finally:
        loader.dispose()


def _measure(node: yaml.Node, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """Count the values and depth of a node with its aliases expanded. Raises YAMLError above the limits."""
    if id(node) not in known:
        known[id(node)] = MAX_VALUES + 1, MAX_DEPTH + 1  # for a node that contains itself
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [_measure(n, known) for pair in inner for n in (pair if isinstance(pair, tuple) else [pair])]
        known[id(node)] = (
            1 + sum(count for count, _ in parts),
            1 + max((depth for _, depth in parts), default=0),
        )
    count, depth = known[id(node)]
    if count > MAX_VALUES:
        raise yaml.YAMLError(f"it holds more than {MAX_VALUES:,} values, including those repeated by aliases")
    if depth > MAX_DEPTH:
        raise yaml.YAMLError(f"sections are nested more than {MAX_DEPTH} deep")
    return count, depth


def one_line(error: Exception) -> str:
    """Return the message of an error in one line."""
    return " ".join(str(error).split())[:MAX_ERROR]
