"""Columns of a query's result."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column of a result: its name, unique in the result, and its Postgres type."""

    name: str
    type: str
    is_array: bool = False
    precision: int | None = None
    """Digits of a numeric that declares them; `scale` of them after the point."""
    scale: int = 0
