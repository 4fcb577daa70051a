"""Imports all tables, for Alembic."""

from trinity_db.schema.tables import (
    batches,
    calls,
    evaluations,
    experiences,
    neighbours,
    parks,
    preferences,
    priorities,
    processing,
    retention,
    reviews,
    rewards,
    rollouts,
    runs,
    scores,
    stores,
    synthesis,
    tasks,
)
from trinity_db.schema.tables.base import Base

metadata = Base.metadata

# Importing a module registers its tables.
__all__ = [
    "batches",
    "calls",
    "evaluations",
    "experiences",
    "metadata",
    "neighbours",
    "parks",
    "preferences",
    "priorities",
    "processing",
    "retention",
    "reviews",
    "rewards",
    "rollouts",
    "runs",
    "scores",
    "stores",
    "synthesis",
    "tasks",
]
