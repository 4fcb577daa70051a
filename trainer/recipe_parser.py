"""How an algorithm is written down: from a name or a short mapping to a recipe with every part spelled out.

`grpo`, `{name: grpo, clip_high: 0.28}`, `{name: grpo, loss: cispo, kl: {name: k3, coefficient: 0.04}}`
and `{name: policy_gradient, loss: my_losses.py:mine}` all become what the settings in `recipes.py`
are validated from. It knows how parts are spelled, and none of them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from trinity_db.settings import Settings, hint, sections_below
from trinity_db.trainer.recipes import (
    RECIPES,
    LabelsConfig,
    MixConfig,
    PolicyGradientConfig,
    PreferenceConfig,
)

Spelled = dict[str, Any]
Classes = dict[str, type[BaseModel]]


def composed(value: Any) -> Any:
    """The recipe that a configuration names, with its changes.

    Raises:
        ValueError: there is no such recipe or option, or two parts have it.
    """
    changes = {"name": value} if isinstance(value, str) else value
    if not isinstance(changes, dict):
        return value
    if "name" not in changes:
        raise ValueError("name it, as in {name: dpo, beta: 0.2}")
    if not isinstance(changes["name"], str) or changes["name"] not in RECIPES:
        raise ValueError(f"there is no '{changes['name']}'; {hint(str(changes['name']), RECIPES)}")
    recipe = RECIPES[changes["name"]]
    result = recipe.model_dump() | {"name": changes["name"]}
    fields = type(recipe).model_fields
    for field in [key for key in changes if key in fields and key != "name"]:
        result[field] = _changed(recipe, field, result[field], changes[field])
    for key in [key for key in changes if key not in fields]:
        option, new = _renamed(key, changes[key])
        _part_with(recipe, result, option)[option] = new
    return result


def composition_of(value: Any) -> str:
    """The tag of the composition that the spelled-out mapping, or the settings, belong to."""
    recipe = RECIPES[value["name"]] if isinstance(value, dict) else value
    if isinstance(recipe, MixConfig):
        return "mix"
    if isinstance(recipe, PolicyGradientConfig):
        return "policy_gradient"
    if isinstance(recipe, LabelsConfig):
        return "labels"
    return "preference" if isinstance(recipe, PreferenceConfig) else "supervised"


def _renamed(option: str, value: Any) -> tuple[str, Any]:
    """An option by its present name: stored configurations may have it by an older one."""
    if option == "scale_by_std":
        return "scale_rewards", ("group" if value else "none") if isinstance(value, bool) else value
    return option, value


def _changed(recipe: Settings, field: str, before: Any, change: Any) -> Any:
    """A field's value in place of another: a part keeps its other options where its name stays."""
    classes = _classes(recipe, field)
    if not classes or change is None:
        return change
    if isinstance(before, tuple):
        changes = change if isinstance(change, list | tuple) else [change]
        only = before[0] if len(before) == 1 else None
        return [_spelled_out(field, only, one, classes) for one in changes]
    return _spelled_out(field, before, change, classes)


def _spelled_out(field: str, before: Spelled | None, change: Any, classes: Classes) -> Any:
    part = {"name": change} if isinstance(change, str) else change
    if not isinstance(part, dict):
        return part
    name = part.get("name", before and before["name"])
    if name is None:
        raise ValueError(f"name it, as in {field}: {{name: {next(iter(classes))}, ...}}")
    if ".py:" in str(name):
        ours = {key: part[key] for key in part if key in classes["own"].model_fields and key != "name"}
        options = {key: part[key] for key in part if key not in ours and key != "name"}
        return {"name": "own", "function": name, "options": options} | ours
    return (before if before and before["name"] == name else {}) | part


def _part_with(recipe: Settings, result: Spelled, option: str) -> Spelled:
    """The one part that has an option of this name."""
    parts = list(_parts(recipe, result))
    found = [(field, part) for field, part, options in parts if option in options]
    if len(found) == 1:
        return found[0][1]
    if found:
        owners = " and of ".join(f"{field} {part['name']}" for field, part in found)
        raise ValueError(f"'{option}' is an option of {owners}: write it into the one that is meant")
    known = {key for _, _, options in parts for key in options} | set(type(recipe).model_fields)
    raise ValueError(f"unknown key '{option}'; {hint(option, sorted(known), 'known keys')}")


def _parts(recipe: Settings, result: Spelled) -> Iterator[tuple[str, Spelled, Mapping[str, Any]]]:
    """The parts as they stand, each with its field and the options that it knows."""
    for field, value in result.items():
        classes = _classes(recipe, field)
        for part in value if isinstance(value, list | tuple) else [value]:
            if isinstance(part, dict) and part.get("name") in classes:
                yield field, part, classes[part["name"]].model_fields


def _classes(recipe: Settings, field: str) -> Classes:
    """The classes of a field's parts, by the parts' names; none where the field is no part."""
    below = sections_below(type(recipe), field)
    return {section.model_fields["name"].default: section for section in below}
