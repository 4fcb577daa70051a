"""Settings of the explorer."""

from typing import Annotated, Literal

from pydantic import Field

from trinity_db.settings import Change, Kept, Settings


class ExplorerConfig(Settings):
    """How rollouts are produced."""

    workflow: Annotated[str, Kept("it says what a rollout of the run is")] = "single_turn"
    """How tasks are attempted: single_turn (one prompt, one response), or a workflow of your own as
    path/to/file.py:name."""
    group_size: Annotated[int, Change.DATED] = Field(8, ge=1, le=10_000)
    """Rollouts of one task that are compared with one another. remax adds one more, at temperature 0."""
    batch_size: Annotated[int, Change.DATED] = Field(32, ge=1, le=10_000)
    """Rollout groups that one explorer attempts together. More use the hardware better; fewer end sooner."""
    order: Annotated[Literal["shuffle", "sequential"], Change.DATED] = "shuffle"
    """Tasks that were issued least come first. Among those: shuffled anew in each pass, or in the order of
    import."""
    temperature: Annotated[float, Kept("the stored log-probabilities are at this temperature")] = Field(
        1.0, gt=0, le=1000
    )
    """Sampling temperature. The trainer divides logits by it too, so that its log-probabilities compare
    with the sampled ones. For a greedy rollout in each group, use remax."""
    max_new_tokens: Annotated[int, Change.DATED] = Field(256, ge=1, le=10_000_000)
    """Longest response in tokens."""
