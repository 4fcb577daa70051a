"""JSON parser that does not block the process's other threads on long texts."""

import json
from collections.abc import Callable
from json.decoder import JSONArray, JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

SHORT = 16_384  # characters; the C parser takes a millisecond for them


def parse_json(text: str | bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """Parse a JSON value.

    Args:
        parse_constant: called for NaN and Infinity, which Python accepts and which are not JSON; None: they
            are numbers.

    The standard library's C parser holds the GIL until it finishes. Long texts are therefore parsed with its
    Python version: strings at the same speed, many small values more slowly.

    Raises:
        ValueError: if it is not JSON, or not UTF-8.
        RecursionError: if it is nested too deeply.
    """
    if len(text) <= SHORT:
        return json.loads(text, parse_constant=parse_constant)
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return _Interruptible(parse_constant=parse_constant).decode(text)


class _Interruptible(json.JSONDecoder):
    """The standard library's decoder with its scanner in Python."""

    def __init__(self, *, parse_constant: Callable[[str], Any] | None) -> None:
        super().__init__(parse_constant=parse_constant)
        self.parse_object, self.parse_array = JSONObject, JSONArray
        self.scan_once = py_make_scanner(self)
