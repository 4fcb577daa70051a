"""Settings of the processors."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from trinity_db.config import ForwardConfig
from trinity_db.settings import Change, Kept, Settings


class CleanConfig(Settings):
    """Which experiences are unfit to be scored."""

    max_response_length: int | None = Field(None, ge=1)
    """Tokens; a longer response is dropped. None: any length."""
    drop_truncated: bool = False
    """Drop responses that ended because no more tokens were allowed (DAPO's overlong filtering). The rest of
    their group is compared without them."""


class RewardConfig(Settings):
    """One reward function and its share in the reward."""

    function: str
    """exact_match, position_match, regex_match, number_match, overlong_penalty, or one of your own as
    path/to/file.py:name."""
    weight: float = Field(1.0, allow_inf_nan=False)
    """The reward is the sum of each function's value times its weight."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the function, for example {pattern: 'A: (.*)'} for regex_match."""

    @model_validator(mode="before")
    @classmethod
    def a_name_alone_is_a_function(cls, value: Any) -> Any:
        return {"function": value} if isinstance(value, str) else value


class ScoreConfig(Settings):
    """How rewards are computed."""

    functions: list[RewardConfig] = Field(default_factory=lambda: [RewardConfig(function="exact_match")])
    """Reward functions; each writes a reward event of its name. []: no function. Rewards then come from the
    workflow, from people or from a teacher."""

    @model_validator(mode="after")
    def each_function_stands_once(self) -> Self:
        # Of each name the latest event counts: of two with one name, the first would count for nothing.
        names = [reward.function for reward in self.functions]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"{name} stands there twice, and of each name one value counts: leave one out, or join "
                    "them in a function of your own, path/to/file.py:name"
                )
        return self


class TeacherConfig(ForwardConfig):
    """Another model that gives its log-probability of each token of a response (on-policy distillation)."""

    path: Path
    """Folder of a causal language model in Hugging Face format that has the same tokens. Each processor loads
    it and asks it at explorer.temperature."""


class GroupConfig(Settings):
    """When a rollout group is ready."""

    min_size: Annotated[int, Change.DATED] = Field(2, ge=1)
    """Members that a group needs after cleaning and scoring. A smaller group is dropped."""
    drop_equal_rewards: Annotated[bool, Change.DATED] = False
    """Drop groups whose rewards are all equal, because all their advantages would be 0, and explore others in
    their place (DAPO's dynamic sampling). Whole rewards are compared, with every function's share. If no
    rewards differ any more, for example once every task is solved, the run explores on and never draws."""
    solved_reward: Annotated[float, Kept("the counts of task_stat are by it")] = Field(
        1.0, allow_inf_nan=False
    )
    """A rollout whose reward, the sum over its steps and functions, is at least this solved its task. What
    task_stat.solved counts, from which the difficulty in drop_view follows. Set it where a right answer earns
    something else than 1, as with a weight of 0.5 or beside a penalty."""
    priority: Annotated[Literal["even", "reward_std"], Kept("the priorities of stored groups follow it")] = (
        "even"
    )
    """The weight of a group in the prioritized sampler. even: 1 for all, unless you set it by SQL.
    reward_std: the standard deviation of its rewards, at least 0.01; it changes when they change."""

    @model_validator(mode="after")
    def one_reward_is_equal_to_itself(self) -> Self:
        if self.drop_equal_rewards and self.min_size < 2:
            raise ValueError("drop_equal_rewards drops every group of one: set min_size to 2 or more")
        return self


class PairConfig(Settings):
    """Preferences out of groups: the best against the worst, the second best against the second worst."""

    margin: float = Field(0.0, ge=0)
    """Smallest difference between the rewards of the chosen and the rejected row. It must be above 0 in any
    case."""


class ArchiveConfig(Settings):
    """Moves payloads of rows that are done with from Postgres to Lance."""

    min_rows: int = Field(4096, ge=1)
    """Smallest number of payloads in one append while the run goes on. Small appends make small files,
    which read slower. The rest is archived at the end of the run."""


class ProcessorsConfig(Settings):
    """Which processors run, and how."""

    clean: Annotated[CleanConfig, Change.DATED] = CleanConfig()
    """Drops unfit responses."""
    score: Annotated[ScoreConfig, Change.DATED] = ScoreConfig()
    """Computes rewards."""
    teacher: Annotated[TeacherConfig | None, Kept("the stored scores are this teacher's")] = None
    """A teacher, whose log-probabilities are stored with each row before the row can be drawn. None: no
    teacher."""
    group: GroupConfig = GroupConfig()
    """Makes whole groups ready."""
    pair: Annotated[PairConfig | None, Kept("the stored pairs were derived by it")] = None
    """Derives preference pairs. None: no pairs."""
    archive: Annotated[ArchiveConfig | None, Change.PER_PROCESS] = None
    """Moves payloads to Lance, at TRINITY_DB_LANCE_URI, which every role must reach. None: they stay in
    Postgres. May change during a run."""
    claim_size: Annotated[int, Change.PER_PROCESS] = Field(256, ge=1, le=100_000)
    """Rows claimed at a time. A larger number means fewer round trips, and more work to repeat after a
    crash. May change during a run."""
    max_attempts: Annotated[int, Change.PER_PROCESS] = Field(3, ge=1)
    """A row that fails this often is dropped with its error, and the others go on. May change during a
    run."""
