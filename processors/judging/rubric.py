"""Rubrics: files of named criteria by which a model judges."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from trinity_db import settings
from trinity_db.errors import ConfigError
from trinity_db.settings import Settings


class Criterion(Settings):
    """One thing that the judge marks. Each mark is a reward event of its own."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    """Lower-case letters, digits and underscores. The reward event is called model_judge/NAME."""
    question: str = Field(min_length=1)
    """What the judge is asked."""
    scale: tuple[float, float] = (0.0, 1.0)
    """The lowest and the highest mark. The mark is the value of the reward event, as it stands."""
    whole: bool = True
    """Only whole numbers are marks. false: fractions too."""
    weight: float = Field(1.0, allow_inf_nan=False)
    """Its share in the reward, times the weight of the step. 0: it stands beside the reward."""

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
        """Its marks in words."""
        low, high = self.scale
        return f"a {'whole number' if self.whole else 'number'} from {low:g} to {high:g}"

    def fault(self, mark: Any) -> str | None:
        """Why something is no mark; None if it is one."""
        if not isinstance(mark, int | float) or isinstance(mark, bool):
            return f"the mark of '{self.name}' is {mark!r:.40}, and not {self.marks}"
        if not self.scale[0] <= mark <= self.scale[1] or (self.whole and not float(mark).is_integer()):
            return f"the mark of '{self.name}' is {mark!r:.40}, and not {self.marks}"
        return None


class Rubric(Settings):
    """A file by which a model judges."""

    version: int = Field(ge=1)
    """Of the rubric, for people. Each reward event names it."""
    instructions: str | None = None
    """Text that the judge reads before the criteria, such as: the readers are beginners."""
    task_columns: list[str] = Field(default_factory=list)
    """Columns of the task that the judge sees, such as answer. It always sees prompt and response."""
    criteria: list[Criterion] = Field(min_length=1, max_length=32)
    """What is marked, in this order."""

    @field_validator("criteria")
    @classmethod
    def each_name_stands_once(cls, criteria: list[Criterion]) -> list[Criterion]:
        names = [one.name for one in criteria]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"the criterion {twice[0]} stands there twice")
        return criteria

    def shown(self, task: Mapping[str, Any] | None) -> dict[str, str]:
        """What the judge sees of a task.

        Raises:
            ValueError: the task lacks a column.
        """
        task = task or {}
        if missing := [one for one in self.task_columns if one not in task]:
            raise ValueError(
                f"the task has no '{missing[0]}', which the rubric shows; import tasks with "
                f"--map {missing[0]}=COLUMN, under another --name"
            )
        return {one: str(task[one]) for one in self.task_columns}


def load(path: Path) -> Rubric:
    """The rubric of a file.

    Raises:
        ConfigError: there is no such file, or it is no rubric.
    """
    try:
        return settings.load(Rubric, path.expanduser())
    except ConfigError as error:
        raise ConfigError(str(error).replace("configuration file", "rubric")) from None
