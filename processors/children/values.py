"""Python values as JSON, between the process of a model's code and the processes that judge it.

Decoding creates only objects of built-in types, so no code of the sender runs in the reader.
"""

import cmath
import math
from collections import deque
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from decimal import Decimal
from fractions import Fraction
from typing import Any

TOLERANCE = 1e-6  # relative and absolute, between floating-point results
MAX_DEPTH = 100  # nesting of compared results
SMALL = 1 << 53  # larger integers are written in hexadecimal, which takes linear time


_TYPES: dict[str, Callable[[Any], Any]] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}
_SEQUENCES = {
    "tuple": (tuple, ValuesView, ItemsView),
    "set": (set, KeysView),
    "frozenset": (frozenset,),
    "deque": (deque,),
}
"""Types that are encoded as a list of their items, by the type as which they are decoded."""


class Unknown:
    """A value of another type, which equals nothing."""


def as_builtin(value: Any) -> Any:
    """Return numbers of the standard library and of numpy, and numpy's arrays, as built-in types."""
    if isinstance(value, Decimal | Fraction) and math.isfinite(value):
        return int(value) if value == int(value) else float(value)
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    return value


def shown(value: Any) -> Any:
    """Encode a value of another type: as a built-in one, or else as its text, for people."""
    converted = as_builtin(value)
    return {"unknown": repr(value)[:200]} if converted is value else encode(converted)


def encode(value: Any, of_other_type: Callable[[Any], Any] = shown) -> Any:
    """Encode a value of built-in types as JSON; `other` encodes a value of another type."""
    if value is None or isinstance(value, bool | str | float):
        return value
    if isinstance(value, int):
        return value if -SMALL < value < SMALL else {"int": hex(value)}
    if isinstance(value, list):
        return [encode(item, of_other_type) for item in value]
    for name, kind in _SEQUENCES.items():
        if isinstance(value, kind):
            return {name: [encode(item, of_other_type) for item in value]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, dict):
        return {
            "dict": [[encode(key, of_other_type), encode(item, of_other_type)] for key, item in value.items()]
        }
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    return of_other_type(value)


def decode(value: Any, of_other_type: Callable[[str, Any], Any] = lambda kind, content: Unknown()) -> Any:
    """Return the encoded value; `other` decodes a value of another type."""
    if isinstance(value, list):
        return [decode(item, of_other_type) for item in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind in _SEQUENCES:
        return _TYPES[kind](decode(item, of_other_type) for item in content)
    if kind == "dict":
        return {decode(key, of_other_type): decode(item, of_other_type) for key, item in content}
    if kind == "int":
        return int(content, 16)
    if kind == "range":
        return range(*content)
    if kind == "bytes":
        return bytes.fromhex(content)
    if kind == "complex":
        return complex(*content)
    return of_other_type(kind, content)


def is_equal(result: Any, expected: Any, depth: int = 0) -> bool:
    """Whether two values are equal: numbers up to the tolerance, all else like in Python."""
    if depth > MAX_DEPTH:
        return False
    result, expected = as_builtin(result), as_builtin(expected)
    if isinstance(result, int | float | complex) and isinstance(expected, int | float | complex):
        return bool(result == expected) or _is_close(result, expected)
    if isinstance(result, set | frozenset) and isinstance(expected, set | frozenset):
        pairs = zip(sorted(result, key=repr), sorted(expected, key=repr), strict=False)
        same = len(result) == len(expected)
        return result == expected or (same and all(is_equal(*pair, depth + 1) for pair in pairs))
    if type(result) is not type(expected):
        return bool(result == expected)
    if isinstance(result, list | tuple):
        same = len(result) == len(expected)
        return same and all(is_equal(*pair, depth + 1) for pair in zip(result, expected, strict=True))
    if isinstance(result, dict):
        same = result.keys() == expected.keys()
        return same and all(is_equal(result[key], expected[key], depth + 1) for key in expected)
    return bool(result == expected)


def as_json(value: Any) -> Any:
    """Return a result like JSON would store it: tuples as lists, and keys of objects as text."""
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {_key(key): as_json(item) for key, item in value.items()}
    return value


def _key(key: Any) -> Any:
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    return str(key) if isinstance(key, int | float) else key


def _is_close(result: complex, expected: complex) -> bool:
    """Whether a floating-point number is close to another, or to an integer that a float can represent."""
    if isinstance(result, int) and isinstance(expected, int):
        return False
    if isinstance(expected, int) and abs(expected) >= SMALL:
        return False
    try:
        relative = 0.0 if isinstance(expected, int) else TOLERANCE
        return cmath.isclose(result, expected, rel_tol=relative, abs_tol=TOLERANCE)
    except OverflowError:  # an integer that no float can represent
        return False
