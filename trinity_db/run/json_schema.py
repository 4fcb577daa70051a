"""The JSON schema of configurations for editors: pydantic's schema, plus the short forms that files may use.

pydantic describes settings with every part spelled out. Files name parts, write their options next to the
recipe, and give a list of one item as the item. The schema accepts all of that, and no unknown keys. Rules
between several keys are not in it: `trinity-db config check` checks them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from trinity_db.config import keys
from trinity_db.config.base import sections_below
from trinity_db.run.configuration import RunConfig
from trinity_db.trainer.recipes.recipes import RECIPES

Schema = dict[str, Any]

OWN = r"\.py:"
"""Part of the name of a function in a user's file."""


def schema() -> Schema:
    """Return the schema, in draft 7, which editors support best."""
    made = RunConfig.model_json_schema()
    definitions: Schema = made["$defs"]
    compositions = {type(recipe).__name__: type(recipe) for recipe in RECIPES.values()}
    for name, composition in compositions.items():
        definitions[name] = _composition(definitions[name], composition, definitions)
    algorithm = made["properties"]["algorithm"]
    made["properties"]["algorithm"] = {
        "description": algorithm["description"],
        "anyOf": [{"enum": list(RECIPES)}, *algorithm["oneOf"]],
    }
    for section in _sections(RunConfig):
        if _may_be_text(section):
            whole = definitions[section.__name__]
            definitions[section.__name__] = {"anyOf": [{"type": "string"}, whole]}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_in_short(made, needs_name=True)}


def _composition(made: Schema, composition: type[BaseModel], definitions: Schema) -> Schema:
    """Add the short forms of one composition's recipes: parts by name, their options next to the recipe."""
    names = [name for name, recipe in RECIPES.items() if type(recipe) is composition]
    properties = {key: _in_short(field, needs_name=False) for key, field in made["properties"].items()}
    for option, forms in _flat_options(composition, definitions).items():
        properties.setdefault(option, forms[0] if len(forms) == 1 else {"anyOf": forms})
    return made | {"properties": properties | {"name": {"enum": names}}, "required": ["name"]}


def _flat_options(composition: type[BaseModel], definitions: Schema) -> dict[str, list[Schema]]:
    """Options of all parts, with the forms that they have in these parts."""
    forms: dict[str, list[Schema]] = {}
    for field in composition.model_fields:
        for part in sections_below(composition, field):
            if keys.alternative(part) in (None, "own"):
                continue
            for option in keys.options_of(part):
                form = definitions[part.__name__]["properties"][option]
                form = {key: value for key, value in form.items() if key != "default"}
                if form not in forms.setdefault(option, []):
                    forms[option].append(form)
    return forms


def _in_short(made: Any, *, needs_name: bool) -> Any:
    """Return a schema that also accepts a name in place of a section, and one part in place of a list.

    Args:
        needs_name: whether a section has to give its name, because nothing else selects it.
    """
    if isinstance(made, list):
        return [_in_short(item, needs_name=needs_name) for item in made]
    if not isinstance(made, dict):
        return made
    if "discriminator" in made:
        others = {key: value for key, value in made.items() if key not in ("discriminator", "oneOf")}
        return others | {"anyOf": list(_choices(made["discriminator"]["mapping"], needs_name))}
    short = {key: _in_short(value, needs_name=needs_name) for key, value in made.items()}
    if "discriminator" in made.get("items", {}):
        others = {key: value for key, value in short.items() if key not in ("type", "items")}
        return others | {"anyOf": [short["items"], {"type": "array", "items": short["items"]}]}
    return short


def _choices(mapping: Mapping[str, str], needs_name: bool) -> Iterator[Schema]:
    yield {"enum": [name for name in mapping if name != "own"]}
    if "own" in mapping:
        own = {"type": "string", "pattern": OWN}
        yield own
        yield {"type": "object", "properties": {"name": own}, "required": ["name"]}
    for reference in mapping.values():
        yield {"allOf": [{"$ref": reference}], "required": ["name"]} if needs_name else {"$ref": reference}


def _sections(section: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for field in section.model_fields:
        for below in sections_below(section, field):
            yield below
            yield from _sections(below)


def _may_be_text(section: type[BaseModel]) -> bool:
    """Whether a section may be given as a text."""
    try:
        section.model_validate("name")
    except ValidationError:
        return False
    return True
