"""All tables at once, for Alembic."""

from trinity_db.schema import (
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
from trinity_db.schema.base import Base

metadata = Base.metadata

# Importing a family registers its tables.
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
