"""Explanations of keys, recipes and parts."""

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trinity_db.cli import output
from trinity_db.config import keys, signatures
from trinity_db.config.base import Change, Kept, sections_in
from trinity_db.errors import NotFound
from trinity_db.processors.lists.lists import LISTS
from trinity_db.run.configuration import RunConfig
from trinity_db.store import processing
from trinity_db.trainer.config import ReferenceConfig, SamplerConfig
from trinity_db.trainer.recipes.recipes import PARTS, RECIPES, choices

WIDTH = 100  # characters of a line of text

KINDS = PARTS | {"sampler": SamplerConfig, "reference": ReferenceConfig}
"""Sections that a configuration selects by name, by kind."""


@dataclass(frozen=True)
class Explanation:
    """Explanation of a key, a recipe or a part."""

    title: str
    text: str
    facts: dict[str, Any] = field(default_factory=dict)
    """Further facts, by name."""
    below: dict[str, str] = field(default_factory=dict)
    """Keys and names that it may contain, with their texts."""

    def lines(self) -> Iterator[str]:
        """Lines for people."""
        yield self.title
        yield from textwrap.wrap(self.text, WIDTH, initial_indent="  ", subsequent_indent="  ")
        width = max(map(len, self.facts), default=0)
        for name, value in self.facts.items():
            text = ", ".join(value) if isinstance(value, list) else str(value)
            yield from _hanging(f"  {name:<{width}}  ", text)
        if self.below:
            yield ""
        width = max(map(len, self.below), default=0)
        for name, text in self.below.items():
            yield from _hanging(f"  {name:<{width}}  ", text)

    def to_json(self) -> dict[str, Any]:
        """Values for scripts."""
        return {"name": self.title, "text": self.text, **self.facts, "below": self.below}


def _hanging(name: str, text: str) -> list[str]:
    wrapped = textwrap.wrap(text, WIDTH, initial_indent=name, subsequent_indent=" " * len(name))
    return wrapped or [name.rstrip()]


def explain(key: str) -> list[Explanation]:
    """Explain a key or a name, once for each of its meanings.

    Raises:
        NotFound: if the key, recipe or part does not exist; the message suggests the nearest.
    """
    explanations = [_recipe(key)] if key in RECIPES else []
    explanations += [_part(kind, part) for kind, part in _parts() if keys.name_of(part) == key]
    explanations += [_step(kind, name, function) for kind, name, function in _steps() if name == key]
    wrong: NotFound | None = None
    try:
        explanations = [*_key(key), *explanations]
    except NotFound as error:
        wrong = error
    explanations = explanations or list(_flat_option(key))
    if not explanations:
        assert wrong is not None
        raise NotFound(f"There is no '{key}'; {keys.nearest(keys.of_fields(RunConfig, key), names())}")
    return explanations


def top() -> list[Explanation]:
    """Explain the configuration by its top-level keys."""
    return [Explanation("configuration", keys.line(RunConfig.__doc__), {}, _below(RunConfig))]


def names() -> list[str]:
    """Names of everything that can be explained."""
    parts = (keys.name_of(part) for _, part in _parts())
    steps = (name for _, name, _ in _steps())
    return list(dict.fromkeys([*keys.every(RunConfig), *RECIPES, *parts, *steps]))


def recipes() -> list[dict[str, Any]]:
    """List the recipes, with the contents of their batches and their parts."""
    return [
        {"recipe": name, "a batch holds": recipe.draws, "parts and options": choices(recipe)}
        for name, recipe in RECIPES.items()
    ]


def parts() -> list[dict[str, Any]]:
    """List the parts and processing steps, with their options and defaults."""
    known = [(kind, keys.name_of(part), keys.options_of(part), part.__doc__) for kind, part in _parts()]
    known += [(kind, name, _options(step), inspect.getdoc(step)) for kind, name, step in _steps()]
    return [
        {
            "kind": kind,
            "part": name,
            "options": {option: keys.default_of(field) for option, field in options.items()},
            "meaning": keys.line(text),
        }
        for kind, name, options, text in known
    ]


def _parts() -> list[tuple[str, type[BaseModel]]]:
    """Parts that a configuration may name, with their kinds."""
    return [
        (kind, part)
        for kind, union in KINDS.items()
        for part in sections_in(union)
        if keys.name_of(part) != "own"
    ]


def _steps() -> list[tuple[str, str, Callable[..., Any]]]:
    """Built-in processing steps, with their kinds."""
    return [
        (steps.kind, name, function) for steps in LISTS.values() for name, function in steps.known.items()
    ]


def _options(step: Callable[..., Any]) -> dict[str, FieldInfo]:
    return signatures.declared(step, processing.columns())


def _key(key: str) -> Iterator[Explanation]:
    for meaning in keys.find(RunConfig, key):
        facts: dict[str, Any] = {"type": meaning.kind}
        if meaning.within:
            facts = {"of": list(meaning.within), **facts}
        if meaning.default:
            facts["default"] = meaning.default
        facts["may change"] = _may_change(meaning.mark)
        below: dict[str, str] = {}
        for section in meaning.below:
            name = keys.alternative(section)
            is_one = name is None or key.endswith(f".{name}")
            below |= _below(section) if is_one else {str(name): keys.line(section.__doc__)}
        above, _, last = key.rpartition(".")
        if above == "processors" and last in LISTS:
            below |= {
                step_name: keys.line(inspect.getdoc(step)) for step_name, step in LISTS[last].known.items()
            }
        yield Explanation(key, meaning.text, facts, below)


def _flat_option(key: str) -> Iterator[Explanation]:
    """Explain an option written next to the recipe's name: algorithm.beta is algorithm.loss.beta."""
    section, _, option = key.rpartition(".")
    if section != "algorithm":
        return
    for path in dict.fromkeys(
        path for path, _ in keys.alternatives(RunConfig) if path.startswith("algorithm.")
    ):
        with suppress(NotFound):
            yield from _key(f"{path}.{option}")


def _recipe(name: str) -> Explanation:
    recipe = RECIPES[name]
    facts = {"type": "recipe", "a batch holds": recipe.draws}
    below = {key: field for key, field in _below(type(recipe)).items() if key != "name"}
    chosen = {key: f"{output.spelled(value)}. {below[key]}" for key, value in choices(recipe).items()}
    return Explanation(name, keys.line(recipe.__doc__), facts, chosen | _without(below, chosen))


def _without(texts: dict[str, str], left_out: Iterable[str]) -> dict[str, str]:
    return {key: text for key, text in texts.items() if key not in left_out}


def _part(kind: str, section: type[BaseModel]) -> Explanation:
    text = keys.line(section.__doc__)
    return Explanation(keys.name_of(section), text, {"type": f"part ({kind})"}, _below(section))


def _step(kind: str, name: str, step: Callable[..., Any]) -> Explanation:
    return Explanation(name, keys.line(inspect.getdoc(step)), {"type": kind}, _texts(_options(step)))


def _below(section: type[BaseModel]) -> dict[str, str]:
    return _texts(keys.options_of(section))


def _texts(options: dict[str, FieldInfo]) -> dict[str, str]:
    return {
        name: f"{keys.line(field.description)} ({_in_short(field)})".strip()
        for name, field in options.items()
    }


def _in_short(field: FieldInfo) -> str:
    default = keys.default_of(field)
    return f"{keys.type_of(field)}; {default}" if default else keys.type_of(field)


def _may_change(mark: keys.Mark) -> str:
    if mark is Change.PER_PROCESS:
        return "yes, it is set per process"
    if mark is Change.DATED:
        return "with --change, for later steps"
    if isinstance(mark, Kept):
        return f"no, {mark.because}{'; before the first step, it may' if mark.once_trained else ''}"
    return "see each key below"
