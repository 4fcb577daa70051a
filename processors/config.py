"""Settings of the processors."""

from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from trinity_db import ages
from trinity_db.errors import ConfigError
from trinity_db.processors.limits import Limits
from trinity_db.processors.lists import LISTS
from trinity_db.settings import Change, Kept, Settings

SHORTEST = timedelta(minutes=1)  # of retention


class StepConfig(Settings):
    """A step of a list: its name alone, or a mapping of its name and its options."""

    model_config = ConfigDict(extra="allow")

    name: str
    """A built-in step, or one of your own as path/to/file.py:name. The other keys are its options."""
    limits: Limits | None = None
    """Time, rows in flight, rates and retries of a step that is async def. None: the defaults."""

    @model_validator(mode="before")
    @classmethod
    def a_name_alone_is_a_step(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def is_own(self) -> bool:
        """Whether it is in a file of the user's, which is not read here."""
        return ".py:" in self.name

    @property
    def options(self) -> dict[str, Any]:
        """What is given to it."""
        return self.model_extra or {}


class ScoreStepConfig(StepConfig):
    """A step of `score`, with its share in the reward."""

    weight: float = Field(1.0, allow_inf_nan=False)
    """The reward is the sum of each step's value times its weight."""


class PriorityStepConfig(StepConfig):
    """A step of `priority`, with its share in the product."""

    weight: float = Field(1.0, gt=0, le=100)
    """The priority of a row is the product of each step's value to the power of its weight."""


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
    """A rollout solved its task if its reward, the sum over its steps and functions, is at least this.
    task_stat.solved counts such rollouts, and the difficulty in drop_view follows from it. Set it if a right
    answer earns something else than 1, as with a weight of 0.5 or beside a penalty."""
    keep: Annotated[Literal["all", "positives", "negatives"], Change.DATED] = "all"
    """Which attempts are left to train on. positives: those that solved their task, by solved_reward.
    negatives: those that have a reward and did not. The others are dropped and count in no mean, so a group
    is compared among those that are left; min_size counts them. The counts of tasks are of all."""
    priority: Annotated[Literal["even", "reward_std"], Kept("the priorities of stored groups follow it")] = (
        "even"
    )
    """The weight of a group in the prioritized sampler. even: 1 for all, unless you set it by SQL, or
    processors.priority computes it. reward_std: the standard deviation of its rewards, at least 0.01; it
    changes when they change."""

    @model_validator(mode="after")
    def one_reward_is_equal_to_itself(self) -> Self:
        if self.drop_equal_rewards and self.min_size < 2:
            raise ValueError("drop_equal_rewards drops every group of one: set min_size to 2 or more")
        return self


class MadeConfig(Settings):
    """Where steps of `synthesis` put what they make, and how much there may be of it."""

    taskset: str | None = None
    """Taskset of the made tasks, which is created if need be. A run attempts it if its `taskset` names it.
    None: the taskset of the source, so that explorers of this run go on with the made tasks."""
    data: str | None = None
    """Data set of the made responses, which is created if need be. None: RUN-made."""
    per_source: int = Field(1, ge=1)
    """Most things that are made of one task, however often it is attempted."""
    total: int = Field(1000, ge=1)
    """Most things that are made from the run's rows. Then no more groups are asked about."""


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


class RetentionConfig(Settings):
    """How long the run keeps what nothing reads any more: an age such as 30d, 12h or 90m. None: for ever.

    Processors remove what is older, in all runs of the store, also after a run has ended.
    """

    payloads: str | None = None
    """Arrays of rows that are done with and that no kept checkpoint needs, and of agents' calls that became
    no accepted rollout. Rows, texts, rewards and batches stay."""
    metrics: str | None = None
    """What the roles measured."""
    processing: str | None = None
    """Processing records of rows that are done with."""

    @field_validator("payloads", "metrics", "processing")
    @classmethod
    def is_an_age(cls, value: str | None) -> str | None:
        if value is not None and ages.parse(value) < SHORTEST:
            raise ValueError(f"{value} is less than a minute")
        return value


class PeopleConfig(Settings):
    """What people are asked about rows and pairs of the run, and how long its groups wait for them."""

    verdicts: int = Field(1, ge=1, le=1000)
    """How many verdicts a row or pair is to have, each by another person. The reward is their mean."""
    lowest: int = Field(0, ge=0, le=8)
    """Worst grade of a row. A key of trinity-db label gives one grade."""
    highest: int = Field(1, ge=1, le=9)
    """Best grade. With 0 and 1 a row is bad or good."""
    wait_seconds: float | None = Field(None, gt=0, le=31_536_000)
    """How long a group waits for requires_reward, from the time at which it is complete. Then it goes on with
    the verdicts that it has; a member without any reward is dropped. None: without end."""

    @model_validator(mode="after")
    def grades_differ(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError(f"lowest {self.lowest} is not below highest {self.highest}")
        return self


class ProcessorsConfig(Settings):
    """Which processors run, and how."""

    clean: Annotated[list[StepConfig], Change.DATED] = Field(
        default_factory=lambda: [StepConfig(name=name) for name in LISTS["clean"].defaults]
    )
    """Steps that drop what is unfit, in order. The word defaults stands for finite_logprobs: empty, truncated
    and repetitive responses are scored, since the policy learns nothing from what is dropped."""
    score: Annotated[list[ScoreStepConfig], Change.DATED] = Field(
        default_factory=lambda: [ScoreStepConfig(name=name) for name in LISTS["score"].defaults]
    )
    """Steps that say what a response is worth, in order; each number is a reward event of the step's name.
    The word defaults stands for exact_match. []: no step gives a reward, because something else does or no
    reward is read. The teacher cannot change during a run."""
    group: GroupConfig = GroupConfig()
    """Makes whole groups ready."""
    priority: Annotated[list[PriorityStepConfig], Kept("the priorities of stored groups follow it")] = Field(
        default_factory=list
    )
    """Steps that say how much there is to learn from each row of a ready group, for the prioritized sampler.
    The group's priority is the mean of its rows'. It is computed again when a reward of the group changes.
    []: as processors.group.priority says."""
    synthesis: Annotated[list[StepConfig], Change.DATED] = Field(default_factory=list)
    """Steps that make new tasks, or responses to learn from, of the row with the highest reward of each group
    that is judged. `origin` says what each was made from. []: none."""
    made: Annotated[MadeConfig, Change.DATED] = MadeConfig()
    """Where they go, and how many."""
    pair: Annotated[PairConfig | None, Kept("the stored pairs were derived by it")] = None
    """Derives preference pairs. None: no pairs."""
    archive: Annotated[ArchiveConfig | None, Change.PER_PROCESS] = None
    """Moves payloads to Lance, at TRINITY_DB_LANCE_URI, which every role must reach. None: they stay in
    Postgres. May change during a run."""
    retention: Annotated[RetentionConfig, Change.DATED] = RetentionConfig()
    """Removes old payloads, metrics and processing records."""
    claim_size: Annotated[int, Change.PER_PROCESS] = Field(256, ge=1, le=100_000)
    """Rows claimed at a time. A larger number means fewer round trips, and more work to repeat after a
    crash. May change during a run."""
    max_attempts: Annotated[int, Change.PER_PROCESS] = Field(3, ge=1)
    """A row that fails this often is dropped with its error, and the others go on. May change during a
    run."""

    @field_validator("clean", "score", mode="before")
    @classmethod
    def defaults_stand_for_the_built_in_list(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, list):
            return value
        defaults = LISTS[str(info.field_name)].defaults
        return [step for one in value for step in (defaults if one == "defaults" else (one,))]

    @field_validator("clean", "score", "priority", "synthesis")
    @classmethod
    def built_in_steps_take_their_options(
        cls, value: list[StepConfig], info: ValidationInfo
    ) -> list[StepConfig]:
        for step in value:
            if not step.is_own:
                try:
                    LISTS[str(info.field_name)].load(step)
                except ConfigError as error:
                    raise ValueError(str(error)) from None
        return value

    @field_validator("score")
    @classmethod
    def each_score_step_stands_once(cls, value: list[ScoreStepConfig]) -> list[ScoreStepConfig]:
        # The latest event of each name counts: of two steps with one name, the first would count for nothing.
        names = [step.name for step in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"{name} stands there twice, but only one value of each name counts: leave one out, or "
                    "join them in a function of your own, path/to/file.py:name"
                )
        return value

    @model_validator(mode="after")
    def priorities_are_said_once(self) -> Self:
        if self.priority and self.group.priority != "even":
            raise ValueError(
                "priority and group.priority both say how groups are weighed: leave group.priority out, and "
                "name reward_spread in priority to have the same"
            )
        return self

    @property
    def works_offline(self) -> bool:
        """Whether there is work where no rows are explored: to archive, and to remove old rows."""
        return self.archive is not None or self.retention != RetentionConfig()

    @property
    def has_teacher(self) -> bool:
        """Whether a built-in step stores another model's scores of each token."""
        return any(LISTS["score"].says(step.name) is not None for step in self.score)

    @property
    def may_have_teacher(self) -> bool:
        """The same, if a step of the user's own may do so too."""
        return self.has_teacher or any(step.is_own for step in self.score)

    @property
    def may_reward(self) -> bool:
        """Whether a step may give a reward."""
        return any(LISTS["score"].says(step.name) is None for step in self.score)
