"""JSON schema, draft 7, as far as the schema of configurations uses it; another word in one is an error."""

import re
from collections.abc import Mapping
from operator import ge, gt, le, lt
from typing import Any

NOTES = {"$schema", "$defs", "title", "description", "default", "format"}
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": int | float,
    "boolean": bool,
    "null": type(None),
}


def accepts(schema: Mapping[str, Any], value: Any) -> bool:
    """Whether a schema accepts a value."""
    return _accepts(schema, value, schema["$defs"])


def _accepts(schema: Mapping[str, Any], value: Any, definitions: Mapping[str, Any]) -> bool:
    def holds(word: str, said: Any) -> bool:
        match word:
            case "$ref":
                return _accepts(definitions[said.removeprefix("#/$defs/")], value, definitions)
            case "anyOf":
                return any(_accepts(one, value, definitions) for one in said)
            case "allOf":
                return all(_accepts(one, value, definitions) for one in said)
            case "enum":
                return value in said
            case "const":
                return bool(value == said)
            case "type":
                is_flag = isinstance(value, bool) and said != "boolean"
                return isinstance(value, TYPES[said]) and not is_flag
            case "pattern":
                return not isinstance(value, str) or re.search(said, value) is not None
            case "minLength":
                return not isinstance(value, str) or len(value) >= said
            case "minItems":
                return not isinstance(value, list) or len(value) >= said
            case "items":
                return not isinstance(value, list) or all(_accepts(said, one, definitions) for one in value)
            case "required":
                return not isinstance(value, dict) or set(said) <= set(value)
            case "properties":
                pairs = value.items() if isinstance(value, dict) else ()
                return all(key not in said or _accepts(said[key], one, definitions) for key, one in pairs)
            case "additionalProperties":
                known = schema.get("properties", {})
                return not isinstance(value, dict) or said is not False or set(value) <= set(known)
        return _is_within(word, said, value)

    return all(word in NOTES or holds(word, said) for word, said in schema.items())


def _is_within(word: str, limit: float, value: Any) -> bool:
    compare = {"minimum": ge, "maximum": le, "exclusiveMinimum": gt, "exclusiveMaximum": lt}[word]
    return not isinstance(value, int | float) or bool(compare(value, limit))
