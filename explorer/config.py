"""Settings of the explorer."""

from typing import Literal

from pydantic import Field

from trinity_db.settings import Settings


class ExplorerConfig(Settings):
    """How rollouts are produced."""

    workflow: str = "single_turn"
    """How tasks are attempted: single_turn (one prompt, one response), or a workflow of one's own as
    path/to/file.py:name."""
    group_size: int = Field(8, ge=1)
    """Rollouts of one task that are compared with one another; remax makes one more, at temperature 0."""
    batch_size: int = Field(32, ge=1)
    """Rollout groups explored together by one explorer. More use the hardware better; fewer end sooner."""
    order: Literal["shuffle", "sequential"] = "shuffle"
    """Tasks issued least come first; among those, shuffled anew in each pass, or in the order of import."""
    temperature: float = Field(1.0, gt=0)
    """Of sampling. The trainer divides by it as well, so that ratios compare like with like. For one greedy
    rollout a group there is remax."""
    max_new_tokens: int = Field(256, ge=1)
    """Longest response in tokens."""
