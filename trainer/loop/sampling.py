"""Builds the sampler of a run: the configured parts and conditions become one SELECT."""

from collections.abc import Sequence
from typing import assert_never

from trinity_db.store.custom_samplers import Choice
from trinity_db.store.samplers import Picks, Sampler
from trinity_db.store.stratified_allocation import BatchShare
from trinity_db.store.user_query import OwnSelect, read, within
from trinity_db.trainer.config import (
    MixedConfig,
    PartConfig,
    PlainSamplerConfig,
    PrioritizedConfig,
    SamplerConfig,
    SqlConfig,
    StratifiedConfig,
)

SECONDS = 60.0  # time limit of a SELECT of conditions, which checks each group that may be drawn
EDGES = {"difficulty": (0.25, 0.5, 0.75), "length": (32, 128, 512, 2048, 8192)}
MEASURES = {"difficulty": "difficulty", "length": "response_length"}


def sampler_of(config: SamplerConfig) -> Picks:
    """Return how the store chooses among rollout groups.

    Raises:
        ConfigError: if the file of the SELECT cannot be read.
    """
    match config:
        case SqlConfig():
            own = OwnSelect(read(config.query, "sampler.query"), config.seconds, "sampler", "sampler.seconds")
            return Choice("sql", own, (BatchShare("sql", beta=config.beta),))
        case MixedConfig():
            return Choice("mix", _own(_mixed(config)), _parts(config), config.fill)
        case StratifiedConfig():
            columns = f"id, 1 AS weight, {_stratum(config)} AS part"
            text = f"SELECT {columns}\nFROM drawable\nWHERE {_where(config.where)}"
            return Choice("stratified", _own(text))
        case _:
            return _plain(config)


def _plain(config: PlainSamplerConfig) -> Picks:
    if config.where is None:
        if isinstance(config, PrioritizedConfig):
            return Sampler(config.name, config.alpha, config.beta)
        return Sampler(config.name)
    text = f"SELECT id, {_weight(config)} AS weight\nFROM drawable\nWHERE {_where(config.where)}"
    return Choice(config.name, _own(text), (_part(config.name, 1.0, config),))


def _parts(config: MixedConfig) -> tuple[BatchShare, ...]:
    return tuple(_part(name, part.share, part.sampler) for name, part in config.parts.items())


def _part(name: str, share: float, sampler: PlainSamplerConfig) -> BatchShare:
    match sampler.name:
        case "fifo":
            return BatchShare(name, share, "oldest")
        case "newest":
            return BatchShare(name, share, "newest")
        case "uniform":
            return BatchShare(name, share, "chance")
        case "prioritized":
            return BatchShare(name, share, "chance", sampler.beta)
        case _:
            assert_never(sampler)


def _mixed(config: MixedConfig) -> str:
    """Return a SELECT that assigns each group to the first part whose conditions it meets."""
    parts = "\n".join(
        f"WHEN {_conditions(part)} THEN {_literal(name)}" for name, part in config.parts.items()
    )
    weights = "\n".join(
        f"WHEN {_literal(name)} THEN {_weight(part.sampler)}" for name, part in config.parts.items()
    )
    # A single part needs no name.
    named = ", part" if len(config.parts) > 1 else ""
    return (
        f"SELECT id, CASE part\n{weights}\nEND AS weight{named}\n"
        f"FROM (SELECT *, CASE\n{parts}\nEND AS part FROM drawable) AS parted\nWHERE part IS NOT NULL"
    )


def _conditions(part: PartConfig) -> str:
    conditions = [] if part.rows is None else ["uses = 0" if part.rows == "live" else "uses > 0"]
    if part.taskset:
        conditions.append(f"taskset IN ({', '.join(map(_literal, part.taskset))})")
    if part.sampler.where is not None:
        conditions.append(_where(part.sampler.where))
    return " AND ".join(conditions) or "true"


def _stratum(config: StratifiedConfig) -> str:
    if config.by == "taskset":
        return "taskset"
    edges: Sequence[float] = config.edges or EDGES[config.by]
    number = f"1 + width_bucket({MEASURES[config.by]}, ARRAY[{', '.join(map(str, edges))}]::float8[])"
    return f"coalesce('{config.by} ' || {number}, '{config.by} unknown')"


def _weight(config: PlainSamplerConfig) -> str:
    if not isinstance(config, PrioritizedConfig):
        return "1"
    return f"CASE WHEN priority > 0 THEN power(priority, {config.alpha}) ELSE 0 END"


def _where(condition: str | None) -> str:
    return "true" if condition is None else f"{within(condition)} IS TRUE"


def _own(text: str) -> OwnSelect:
    return OwnSelect(text, SECONDS, "sampler")


def _literal(text: str) -> str:
    """Quote a text as a literal for a statement with placeholders."""
    return "'" + text.replace("'", "''").replace("%", "%%") + "'"
