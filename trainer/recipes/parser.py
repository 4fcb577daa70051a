"""Parses an algorithm in a configuration: from a name or a short mapping to a mapping of all parts.

Examples: `grpo`, `{name: grpo, clip_high: 0.28}`, `{name: grpo, loss: cispo, kl: {name: k3, coefficient:
0.04}}`, `{name: policy_gradient, loss: my_losses.py:mine}`. The settings classes in `recipes.py` validate the
result. The parser does not depend on particular parts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from trinity_db.config.base import Settings, hint, sections_below
from trinity_db.trainer.recipes.recipes import (
    RECIPES,
    ExternalConfig,
    LabelsConfig,
    MixConfig,
    PolicyGradientConfig,
    PreferenceConfig,
    RewardModelConfig,
)

Parts = dict[str, Any]
"""A recipe or a part as a mapping with all keys."""
Classes = dict[str, type[BaseModel]]


def composed(value: Any) -> Any:
    """Return the recipe named in a configuration, with its changes, as a mapping of all parts.

    Raises:
        ValueError: if the recipe or an option does not exist, or two parts have the option.
    """
    changes = {"name": value} if isinstance(value, str) else value
    if not isinstance(changes, dict):
        return value
    if "name" not in changes:
        raise ValueError("it needs a name, such as {name: dpo, beta: 0.2}")
    if not isinstance(changes["name"], str) or changes["name"] not in RECIPES:
        raise ValueError(f"there is no '{changes['name']}'; {hint(str(changes['name']), RECIPES)}")
    recipe = RECIPES[changes["name"]]
    result = recipe.model_dump() | {"name": changes["name"]}
    fields = type(recipe).model_fields
    for field in [key for key in changes if key in fields and key != "name"]:
        result[field] = _changed_field(recipe, field, result[field], changes[field])
    for key in [key for key in changes if key not in fields]:
        _part_with(recipe, result, key)[key] = changes[key]
    return result


def composition_of(value: Any) -> str:
    """Return the tag of the composition for a mapping of all parts, or for its settings."""
    recipe = RECIPES[value["name"]] if isinstance(value, dict) else value
    if isinstance(recipe, MixConfig):
        return "mix"
    if isinstance(recipe, PolicyGradientConfig):
        return "policy_gradient"
    if isinstance(recipe, ExternalConfig):
        return "external"
    if isinstance(recipe, LabelsConfig):
        return "labels"
    if isinstance(recipe, RewardModelConfig):
        return "reward_model"
    return "preference" if isinstance(recipe, PreferenceConfig) else "supervised"


def _changed_field(recipe: Settings, field: str, before: Any, change: Any) -> Any:
    """Return a field's new value. A part keeps its other options if its name is unchanged."""
    classes = _classes(recipe, field)
    if not classes or change is None:
        return change
    if isinstance(before, tuple):
        changes = change if isinstance(change, list | tuple) else [change]
        only = before[0] if len(before) == 1 else None
        return [_changed_part(field, only, part, classes) for part in changes]
    return _changed_part(field, before, change, classes)


def _changed_part(field: str, before: Parts | None, change: Any, classes: Classes) -> Any:
    """Return a part as a mapping with its name. A function in a user's file becomes the part `own`."""
    part = {"name": change} if isinstance(change, str) else change
    if not isinstance(part, dict):
        return part
    name = part.get("name", before and before["name"])
    if name is None:
        raise ValueError(f"it needs a name, such as {field}: {{name: {next(iter(classes))}, ...}}")
    if ".py:" in str(name):
        known = {key: part[key] for key in part if key in classes["own"].model_fields and key != "name"}
        options = {key: part[key] for key in part if key not in known and key != "name"}
        return {"name": "own", "function": name, "options": options} | known
    return (before if before and before["name"] == name else {}) | part


def _part_with(recipe: Settings, result: Parts, option: str) -> Parts:
    """Return the only part that has an option of this name."""
    parts = list(_parts(recipe, result))
    owners = [(field, part) for field, part, options in parts if option in options]
    if len(owners) == 1:
        return owners[0][1]
    if owners:
        names = " and of ".join(f"{field} {part['name']}" for field, part in owners)
        raise ValueError(f"'{option}' is an option of {names}: move it into one of them")
    known = {key for _, _, options in parts for key in options} | set(type(recipe).model_fields)
    raise ValueError(f"unknown key '{option}'; {hint(option, sorted(known), 'known keys')}")


def _parts(recipe: Settings, result: Parts) -> Iterator[tuple[str, Parts, Mapping[str, Any]]]:
    """Yield each part with its field and its options."""
    for field, value in result.items():
        classes = _classes(recipe, field)
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, dict) and part.get("name") in classes:
                yield field, part, classes[part["name"]].model_fields


def _classes(recipe: Settings, field: str) -> Classes:
    """Return the settings classes of a field's parts, by the parts' names. Empty if the field has no part."""
    below = sections_below(type(recipe), field)
    return {section.model_fields["name"].default: section for section in below}
