"""Rubrics: files with named criteria for a model judge."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from trinity_db.config import base
from trinity_db.config.base import Settings
from trinity_db.errors import ConfigError


class Criterion(Settings):
    """A criterion to mark. Each mark is a separate reward event."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    """Lower-case letters, digits and underscores. The reward event is called model_judge/NAME."""
    question: str = Field(min_length=1)
    """Question to the judge."""
    scale: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest mark. The mark is the value of the reward event, unchanged."""
    whole: bool = True
    """Whether marks are whole numbers. false: fractions are allowed."""
    weight: float = Field(1.0, allow_inf_nan=False)
    """Weight in the reward, multiplied by the weight of the step. 0: recorded, but not part of the reward."""

    @model_validator(mode="after")
    def scale_goes_up(self) -> Self:
        low, high = self.scale
        if not low < high:
            raise ValueError(f"the scale of {self.name} must go from a lower to a higher mark")
        if self.whole and not (low.is_integer() and high.is_integer()):
            raise ValueError(f"the scale of {self.name} has fractions: set whole: false")
        return self

    @property
    def marks(self) -> str:
        """Return a description of the valid marks."""
        low, high = self.scale
        return f"a {'whole number' if self.whole else 'number'} from {low:g} to {high:g}"

    def fault(self, mark: Any) -> str | None:
        """Return why a mark is invalid; None if it is valid."""
        if not isinstance(mark, int | float) or isinstance(mark, bool):
            return f"the mark of '{self.name}' is {mark!r:.40}, not {self.marks}"
        if not self.scale[0] <= mark <= self.scale[1] or (self.whole and not float(mark).is_integer()):
            return f"the mark of '{self.name}' is {mark!r:.40}, not {self.marks}"
        return None


class Rubric(Settings):
    """Instructions and criteria for a model judge."""

    version: int = Field(ge=1)
    """Version of the rubric, for people, recorded with each reward event."""
    instructions: str | None = None
    """Text for the judge before the criteria, such as: the readers are beginners."""
    task_columns: list[str] = Field(default_factory=list)
    """Columns of the task that the judge sees, such as answer. It always sees prompt and response."""
    criteria: list[Criterion] = Field(min_length=1, max_length=32)
    """Criteria, in this order."""

    @field_validator("criteria")
    @classmethod
    def each_name_stands_once(cls, criteria: list[Criterion]) -> list[Criterion]:
        names = [criterion.name for criterion in criteria]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"the criterion {twice[0]} is listed twice")
        return criteria

    def shown(self, task: Mapping[str, Any] | None) -> dict[str, str]:
        """Return the task's texts for the judge.

        Raises:
            ValueError: if the task lacks a column.
        """
        task = task or {}
        if missing := [column for column in self.task_columns if column not in task]:
            raise ValueError(
                f"the task has no '{missing[0]}', which the rubric shows; import tasks with "
                f"--map {missing[0]}=COLUMN, under another --name"
            )
        return {column: str(task[column]) for column in self.task_columns}


def load(path: Path) -> Rubric:
    """Load a rubric from a file.

    Raises:
        ConfigError: if the file does not exist, or is not a valid rubric.
    """
    try:
        return base.load(Rubric, path.expanduser())
    except ConfigError as error:
        raise ConfigError(str(error).replace("configuration file", "rubric")) from None
