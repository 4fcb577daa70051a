"""JSON of any length, parsed without stopping the other threads of the process."""

import json
from json.decoder import JSONArray, JSONObject  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

SHORT = 16_384  # characters, which the parser in C reads in a millisecond


def parse_json(text: str | bytes) -> Any:
    """A JSON value.

    The parser of the standard library in C holds the interpreter until it ends. Long texts are therefore
    parsed by its Python version: strings at the same speed, many small values slower.

    Raises:
        ValueError: it is no JSON, or not UTF-8.
        RecursionError: it is nested too deeply.
    """
    if len(text) <= SHORT:
        return json.loads(text)
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    return _Interruptible().decode(text)


class _Interruptible(json.JSONDecoder):
    """The standard library's decoder with its scanner in Python."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_object, self.parse_array = JSONObject, JSONArray
        self.scan_once = py_make_scanner(self)
