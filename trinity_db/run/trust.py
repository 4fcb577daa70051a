"""Trust boundaries: which recorded names a process may use, and what is only data.

A URL, path, module, variable, SELECT or command from the database, a bucket, Lance, an archive or an imported
file is data. It is never used unless the caller's configuration names the same. Less trusted logins write
there: whoever may insert a run, or write one object, must not choose what another person's process runs or
where it sends a key.

There are two exceptions. Folders and addresses of versions and checkpoints are used: their files must have
the recorded digest, and load no code. `replay --check` repeats the SELECT of a recorded draw, in a read-only
transaction, with a read-only login.

docs/guides/trust.md lists every such column and file.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from trinity_db.errors import ConfigError

MAX_SHOWN = 3  # most names in a message

# Free text in a configuration counts as an external reference unless its key is in one of these two. So a new
# key is refused until someone has decided.
INERT = frozenset(
    (
        *("name", "taskset", "data", "evaluation.taskset", "requires_reward", "explorer.requests.models"),
        "explorer.requests.train",
        *("model.run", "model.prompt_template", "model.system_prompt"),
        *("model.chat_template_kwargs", "model.scratch.alphabet"),
        *("sampler.parts.taskset", "sampler.name", "trainer.lora.targets", "trainer.keep_best"),
        *("processors.made.taskset", "processors.made.data"),
        *(f"processors.retention.{name}" for name in ("payloads", "metrics", "processing")),
        *(f"processors.{stage}.within" for stage in ("clean", "score")),
        *("processors.clean.languages", "processors.clean.tasksets", "processors.clean.forward.dtype"),
        *(f"processors.score.{name}" for name in ("tests", "sandbox", "forward.dtype", "run")),
    )
)
"""Keys whose text names something in the store, is shown to a model, or is only compared with other text."""
FUNCTIONS = frozenset(
    (
        *("explorer.workflow", "explorer.engine.name"),
        *(f"processors.{stage}.name" for stage in ("clean", "score", "priority", "synthesis")),
    )
)
"""Keys whose names are built in, like all in `algorithm`, unless their form is path/to/file.py:name."""


def check_stored(run: str, sections: Mapping[str, BaseModel | Iterable[BaseModel] | Path | None]) -> None:
    """Refuse sections of a stored configuration with external references.

    Args:
        sections: sections, or values of single keys, by key, for example {"processors.score": [...]}.

    Raises:
        ConfigError: with the keys, and the option to pass.
    """
    outside = [reference for key, section in sections.items() for reference in references(section, key)]
    if not outside:
        return
    shown = ", ".join(f"{key} {value!r:.100}" for key, value in outside[:MAX_SHOWN])
    more = f" and {len(outside) - MAX_SHOWN} more" if len(outside) > MAX_SHOWN else ""
    raise ConfigError(
        f"Run '{run}': its stored configuration names {shown}{more}. A stored configuration is data, and no "
        "code, file, address or variable that it names is used: pass the run's file with --config FILE."
    )


def references(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield the external references of a configuration, with their dotted keys."""
    return ((at, text) for at, text in _texts(value, key) if not _is_inert(at, text))


def free_text_keys(model: type[BaseModel], key: str = "") -> Iterator[str]:
    """Yield the keys of a configuration that accept any text."""
    for name, field in model.model_fields.items():
        at = f"{key}.{name}".lstrip(".")
        if takes_any_text(field.annotation):
            yield at
        for below in _sections(field.annotation):
            yield from free_text_keys(below, at)


def takes_any_text(annotation: Any) -> bool:
    """Whether a type accepts any text, neither restricted to given words nor within a section."""
    if get_origin(annotation) is Literal:
        return False
    return annotation in (str, Path, Any) or any(
        takes_any_text(argument) for argument in get_args(annotation)
    )


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from _sections(argument)


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            inner = getattr(value, name)
            if takes_any_text(field.annotation) or not isinstance(inner, str):
                yield from _texts(inner, f"{key}.{name}".lstrip("."))
        for name, inner in (value.model_extra or {}).items():
            yield from _texts(inner, f"{key}.{name}")
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, f"{key}.{name}" if isinstance(inner, str | dict) else key)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in value:
            yield from _texts(inner, key)
    elif isinstance(value, str | Path):
        yield key, str(value)


def _is_inert(key: str, text: str) -> bool:
    if key in INERT or key.startswith("model.chat_template_kwargs."):
        return True
    return (key in FUNCTIONS or key.startswith("algorithm.")) and ".py:" not in text
