"""Reader of pickles of plain values, without executing them.

A pickle is a program, which can call arbitrary functions. This reader supports only the instructions for
None, booleans, numbers, texts, lists, tuples and dicts, from protocol 2 on. It refuses all others, including
every reference to a class or function, and limits the size of the result.
"""

import pickletools
from typing import Any

from trinity_db.data.records.records import MAX_NUMBER_BITS, MAX_RECORD_BYTES

# Limits of the result. A small pickle may refer to one value many times and expand to a huge one, so each
# reference counts.
MAX_VALUES = 100_000
MAX_BYTES = MAX_RECORD_BYTES  # total of texts and numbers
MAX_DEPTH = 100
MAX_KEY_BITS = 64

_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple}
_SHORT_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NAMES = {"BINPUT", "LONG_BINPUT"}
_NAMED = {"BINGET", "LONG_BINGET"}


def loads(data: bytes) -> Any:
    """Return the value of a pickle, with tuples as lists.

    Raises:
        ValueError: if it is not a pickle, or contains more than plain values.
    """
    try:
        return _Copy().of(_Machine().run(data), MAX_DEPTH)
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"is a damaged pickle: {error!r}") from None


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> Any:
        for instruction, argument, _ in pickletools.genops(data):
            if instruction.name == "STOP":
                return self.stack.pop()
            self._do(instruction.name, argument)
        raise ValueError("is a pickle without an end")

    def _do(self, name: str, argument: Any) -> None:
        stack = self.stack
        if name in _VALUES:
            stack.append(argument)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in _NAMES:
            self.memo[argument] = stack[-1]
        elif name in _NAMED:
            stack.append(self.memo[argument])
        elif name in ("APPEND", "APPENDS"):
            values = self._last(1) if name == "APPEND" else self._marked()
            stack[-1].extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = self._last(2) if name == "SETITEM" else self._marked()
            stack[-1].update(zip(map(_key, values[::2]), values[1::2], strict=True))
        elif name == "TUPLE" or name in _SHORT_TUPLES:
            stack.append(tuple(self._last(_SHORT_TUPLES[name]) if name in _SHORT_TUPLES else self._marked()))
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"is a pickle of more than plain values ({name}), which is not executed")

    def _last(self, number: int) -> list[Any]:
        values = self.stack[-number:]
        del self.stack[-number:]
        return values

    def _marked(self) -> list[Any]:
        return self._last(len(self.stack) - mark) if (mark := self.marks.pop()) < len(self.stack) else []


def _key(value: Any) -> Any:
    """Check and return a dict key. Hashing nested tuples can take time exponential in their depth."""
    if type(value) not in (str, int, float, bool, type(None)):
        raise ValueError("is a pickle of an object with a name that is neither text nor number")
    if type(value) is int and value.bit_length() > MAX_KEY_BITS:
        raise ValueError(f"is a pickle of an object with a number of more than {MAX_KEY_BITS} bits as a name")
    return value


class _Copy:
    """Copies a value as JSON, without shared lists and dicts."""

    def __init__(self) -> None:
        self.values_left, self.bytes_left = MAX_VALUES, MAX_BYTES

    def of(self, value: Any, depth: int) -> Any:
        self.values_left -= 1
        self.bytes_left -= _num_bytes(value)
        if self.values_left < 0 or self.bytes_left < 0 or not depth:
            raise ValueError("is a pickle of a value that is too large")
        if isinstance(value, list | tuple):
            return [self.of(item, depth - 1) for item in value]
        if isinstance(value, dict):
            self.bytes_left -= sum(map(_num_bytes, value))
            return {str(name): self.of(item, depth - 1) for name, item in value.items()}
        return value


def _num_bytes(value: Any) -> int:
    """Return the size of a text or an integer."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "surrogatepass"))
    if isinstance(value, int):
        if value.bit_length() > MAX_NUMBER_BITS:
            raise ValueError("is a pickle of a whole number that is too long")
        return value.bit_length() // 8
    return 0
