"""Settings of the processors."""

from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, ValidationInfo, field_validator, model_validator

from trinity_db.config import durations
from trinity_db.config.base import Change, Kept, Settings
from trinity_db.errors import ConfigError
from trinity_db.processors.lists.limits import Limits

SHORTEST = timedelta(minutes=1)  # minimum retention

DEFAULTS = {"clean": ("finite_logprobs",), "score": ("exact_match",)}
"""Steps used if the configuration has no list. In a list, `defaults` inserts them."""

STEP_LISTS = ("clean", "score", "priority", "synthesis")
"""Keys that have a list of steps."""

TEACHER = "teacher"
"""Built-in step of `score` that stores another model's log-probabilities of tokens, and gives no reward."""


class StepConfig(Settings):
    """A step of a list: its name alone, or a mapping of its name and its options."""

    model_config = ConfigDict(extra="allow")

    name: str
    """A built-in step, or your own as path/to/file.py:name. The other keys are its options."""
    limits: Limits | None = None
    """Timeouts, concurrency, rate limits and retries of a step that is async def. None: the defaults."""

    @model_validator(mode="before")
    @classmethod
    def a_name_alone_is_a_step(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value

    @property
    def is_own(self) -> bool:
        """Whether the step is in a file of the user's, which is not read here."""
        return ".py:" in self.name

    @property
    def options(self) -> dict[str, Any]:
        """Options given to the step."""
        return self.model_extra or {}


class ScoreStepConfig(StepConfig):
    """A step of `score`, with its weight in the reward."""

    weight: float = Field(1.0, allow_inf_nan=False)
    """Weight of the step's value. The reward is the weighted sum over the steps."""


class PriorityStepConfig(StepConfig):
    """A step of `priority`, with its weight in the product."""

    weight: float = Field(1.0, gt=0, le=100)
    """Exponent of the step's value. The priority of a row is the product over the steps."""


class GroupConfig(Settings):
    """Conditions under which a rollout group is ready."""

    min_size: Annotated[int, Change.DATED] = Field(2, ge=1)
    """Members that a group needs after cleaning and scoring. A smaller group is dropped."""
    drop_equal_rewards: Annotated[bool, Change.DATED] = False
    """Drop groups whose rewards are all equal, because all their advantages would be 0, and explore other
    tasks instead (DAPO's dynamic sampling). Rewards are compared as sums over all reward functions. If
    rewards no longer differ, for example once every task is solved, explorers keep exploring and no batch is
    ever drawn."""
    solved_reward: Annotated[float, Kept("task_stat was counted with it")] = Field(1.0, allow_inf_nan=False)
    """Smallest reward, summed over steps and functions, of a rollout that solved its task. task_stat.solved
    counts such rollouts, and the difficulty in drop_view follows from it. Set it if a correct answer does not
    earn 1, for example because of a weight of 0.5 or a penalty."""
    keep: Annotated[Literal["all", "positives", "negatives"], Change.DATED] = "all"
    """Attempts to train on. positives: attempts that solved their task, by solved_reward. negatives: attempts
    that have a reward and did not. Other attempts are dropped and excluded from means, so the rest of the
    group is compared among itself; min_size applies to the rest. The counts of tasks cover all attempts."""
    priority: Annotated[Literal["even", "reward_std"], Kept("priorities of stored groups depend on it")] = (
        "even"
    )
    """Weight of a group in the prioritized sampler. even: 1 for all, unless you set it with SQL or
    processors.priority computes it. reward_std: the standard deviation of its rewards, at least 0.01, updated
    when they change."""

    @model_validator(mode="after")
    def one_reward_is_equal_to_itself(self) -> Self:
        if self.drop_equal_rewards and self.min_size < 2:
            raise ValueError("drop_equal_rewards drops every group of one: set min_size to 2 or more")
        return self


class MadeConfig(Settings):
    """Destination and limits of the output of `synthesis` steps."""

    taskset: str | None = None
    """Taskset for new tasks, created if it does not exist. A run attempts it if its `taskset` names it. None:
    the taskset of the source, so that explorers of this run attempt the new tasks."""
    data: str | None = None
    """Data set for new responses, created if it does not exist. None: RUN-made."""
    per_source: int = Field(1, ge=1)
    """Maximum number of items made from one task, over all its attempts."""
    total: int = Field(1000, ge=1)
    """Maximum number of items made from the run's rows; reaching it ends the synthesis."""


class PairConfig(Settings):
    """Preference pairs within groups: the best row against the worst, the second best against the second
    worst."""

    margin: float = Field(0.0, ge=0)
    """Minimum difference between the rewards of the chosen and the rejected row, which must also exceed 0."""


class ArchiveConfig(Settings):
    """Moves payloads of finished rows from Postgres to Lance."""

    min_rows: int = Field(4096, ge=1)
    """Minimum number of payloads in one append during the run. Small appends make small files, which are
    slower to read. The remainder is archived at the end of the run."""


class RetentionConfig(Settings):
    """Retention periods of data that nothing reads any longer: ages such as 30d, 12h or 90m. None: forever.

    Processors remove older data, in all runs of the store, including finished runs.
    """

    payloads: str | None = None
    """Arrays of finished rows that no kept checkpoint needs, and of agents' calls that did not become an
    accepted rollout. Rows, texts, rewards and batches are kept."""
    metrics: str | None = None
    """Metrics of the roles."""
    processing: str | None = None
    """Processing records of finished rows."""

    @field_validator("payloads", "metrics", "processing")
    @classmethod
    def is_an_age(cls, value: str | None) -> str | None:
        if value is not None and durations.parse(value) < SHORTEST:
            raise ValueError(f"{value} is less than a minute")
        return value


class PeopleConfig(Settings):
    """Human labels for rows and pairs of the run, and how long groups wait for them."""

    verdicts: int = Field(1, ge=1, le=1000)
    """Number of verdicts per row or pair, each from a different person. The reward is their mean."""
    lowest: int = Field(0, ge=0, le=8)
    """Worst grade of a row. One keystroke in trinity-db label gives one grade."""
    highest: int = Field(1, ge=1, le=9)
    """Best grade. With 0 and 1 a row is bad or good."""
    wait_seconds: float | None = Field(None, gt=0, le=31_536_000)
    """Seconds that a complete group waits for requires_reward. It then continues with the existing verdicts;
    a member without any reward is dropped. None: no limit."""

    @model_validator(mode="after")
    def grades_differ(self) -> Self:
        if self.lowest >= self.highest:
            raise ValueError(f"lowest {self.lowest} is not below highest {self.highest}")
        return self


class ProcessorsConfig(Settings):
    """Processors and their steps."""

    clean: Annotated[list[StepConfig], Change.DATED] = Field(
        default_factory=lambda: [StepConfig(name=name) for name in DEFAULTS["clean"]]
    )
    """Steps that drop unfit rows, in order. The word defaults includes finite_logprobs. Empty, truncated and
    repetitive responses are scored by default, since the policy learns nothing from dropped rows."""
    score: Annotated[list[ScoreStepConfig], Change.DATED] = Field(
        default_factory=lambda: [ScoreStepConfig(name=name) for name in DEFAULTS["score"]]
    )
    """Steps that score responses, in order; each number is a reward event named after the step. The word
    defaults includes exact_match. []: no step gives a reward, because something else does or no reward is
    read; the default if attempts bring their rewards, by explorer.workflow.check or explorer.workflow:
    served. The teacher cannot change during a run."""
    group: GroupConfig = GroupConfig()
    """Conditions for complete groups."""
    priority: Annotated[list[PriorityStepConfig], Kept("priorities of stored groups depend on it")] = Field(
        default_factory=list
    )
    """Steps that estimate how much can be learned from each row of a ready group, for the prioritized
    sampler. The group's priority is the mean over its rows, updated when a reward of the group changes. []:
    see processors.group.priority."""
    synthesis: Annotated[list[StepConfig], Change.DATED] = Field(default_factory=list)
    """Steps that make new tasks or training responses from the row with the highest reward of each scored
    group. `origin` records the source of each item. []: none."""
    made: Annotated[MadeConfig, Change.DATED] = MadeConfig()
    """Destination and limits of the synthesis."""
    pair: Annotated[PairConfig | None, Kept("the stored pairs were derived with it")] = None
    """Preference pairs derived from groups. None: no pairs."""
    archive: Annotated[ArchiveConfig | None, Change.PER_PROCESS] = None
    """Archive of payloads in Lance, at TRINITY_DB_LANCE_URI, which every role must reach. None: payloads stay
    in Postgres. May change during a run."""
    retention: Annotated[RetentionConfig, Change.DATED] = RetentionConfig()
    """Removal of old payloads, metrics and processing records."""
    claim_size: Annotated[int, Change.PER_PROCESS] = Field(256, ge=1, le=100_000)
    """Rows claimed at a time. More rows mean fewer round trips, and more work to repeat after a crash. May
    change during a run."""
    max_attempts: Annotated[int, Change.PER_PROCESS] = Field(3, ge=1)
    """Failures after which a row is dropped with its error. Other rows are not affected. May change during a
    run."""

    @field_validator("clean", "score", mode="before")
    @classmethod
    def defaults_stand_for_the_built_in_list(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, list):
            return value
        defaults = DEFAULTS[str(info.field_name)]
        return [step for listed in value for step in (defaults if listed == "defaults" else (listed,))]

    @field_validator(*STEP_LISTS)
    @classmethod
    def built_in_steps_take_their_options(
        cls, value: list[StepConfig], info: ValidationInfo
    ) -> list[StepConfig]:
        if info.context is None:
            _check_built_in(str(info.field_name), value)
        return value

    @field_validator("score")
    @classmethod
    def each_score_step_stands_once(cls, value: list[ScoreStepConfig]) -> list[ScoreStepConfig]:
        # Only the latest event of each name counts: with two steps of one name, the first would have no
        # effect.
        names = [step.name for step in value]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"{name} is listed twice, but only one value of each name counts: remove one, or "
                    "combine them in a function of your own, path/to/file.py:name"
                )
        return value

    @model_validator(mode="after")
    def priorities_are_said_once(self) -> Self:
        if self.priority and self.group.priority != "even":
            raise ValueError(
                "priority and group.priority both set the weights of groups: remove group.priority, and "
                "add reward_spread to priority for the same effect"
            )
        return self

    def check_built_in_steps(self) -> None:
        """Check that the built-in steps exist and take their options. Imports all steps.

        Raises:
            ConfigError: names the list and the step.
        """
        for name in STEP_LISTS:
            try:
                _check_built_in(name, getattr(self, name))
            except ValueError as error:
                raise ConfigError(f"processors.{name}: {error}") from None

    @property
    def works_offline(self) -> bool:
        """Whether an offline run has work for processors: archiving or retention."""
        return self.archive is not None or self.retention != RetentionConfig()

    @property
    def has_teacher(self) -> bool:
        """Whether a built-in step stores another model's log-probabilities of each token."""
        return any(step.name == TEACHER for step in self.score)

    @property
    def may_have_teacher(self) -> bool:
        """Whether a built-in step or the user's own step may store another model's log-probabilities."""
        return self.has_teacher or any(step.is_own for step in self.score)

    @property
    def may_reward(self) -> bool:
        """Whether a step may give a reward."""
        return any(step.name != TEACHER for step in self.score)


def _check_built_in(processor: str, steps: Iterable[StepConfig]) -> None:
    """Raise ValueError if a built-in step does not exist or does not take its options."""
    from trinity_db.processors.lists.lists import LISTS  # imports all steps

    for step in steps:
        if not step.is_own:
            try:
                LISTS[processor].load(step)
            except ConfigError as error:
                raise ValueError(str(error)) from None
