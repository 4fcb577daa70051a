"""YAML texts as configurations have them: YAML 1.2's simple values, and no more values than they need."""

import re
from typing import Any, ClassVar

import yaml

MAX_VALUES = 20_000  # in a configuration file; a value counts again if an alias repeats it
MAX_DEPTH = 30  # sections within sections
MAX_ERROR = 500  # characters of an error


class _Loader(yaml.SafeLoader):
    """YAML 1.2's simple values: only true and false are truth values, 1e-5 is a number, a date is text.

    A key that stands twice is an error: only the last one would count.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}  # type: ignore[misc]

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here, where the text is read: later what is merged by << stands beside keys of the same name.
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        known: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in known:
                    raise yaml.composer.ComposerError(
                        None, None, f"the key '{key.value}' stands twice; make one of both", key.start_mark
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
    """What a YAML text holds.

    Raises:
        yaml.YAMLError: it is none, or more than a configuration needs.
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
    except ValueError as error:  # a number of thousands of digits
        raise yaml.YAMLError(one_line(error)) from None
    finally:
        loader.dispose()


def _measure(node: yaml.Node, known: dict[int, tuple[int, int]]) -> tuple[int, int]:
    """How many values a node holds and how deep they lie, aliases written out. YAMLError for too many."""
    if id(node) not in known:
        known[id(node)] = MAX_VALUES + 1, MAX_DEPTH + 1  # for one that stands within itself
        inner = node.value if isinstance(node, yaml.CollectionNode) else []
        parts = [_measure(n, known) for pair in inner for n in (pair if isinstance(pair, tuple) else [pair])]
        known[id(node)] = (
            1 + sum(count for count, _ in parts),
            1 + max((depth for _, depth in parts), default=0),
        )
    count, depth = known[id(node)]
    if count > MAX_VALUES:
        raise yaml.YAMLError(f"it holds more than {MAX_VALUES:,} values, those that aliases repeat included")
    if depth > MAX_DEPTH:
        raise yaml.YAMLError(f"sections are nested more than {MAX_DEPTH} deep")
    return count, depth


def one_line(error: Exception) -> str:
    """What an error says, as one line."""
    return " ".join(str(error).split())[:MAX_ERROR]
