"""A run or data set of the store, as a program sees it."""

from dataclasses import dataclass
from typing import Any

from trinity_db.api.conditions import Bound, bind
from trinity_db.api.query import Query
from trinity_db.config.base import hint
from trinity_db.errors import ConfigError
from trinity_db.postgres.connection import Database
from trinity_db.schema.queries import query
from trinity_db.schema.states import ExperienceState
from trinity_db.store import runs


@dataclass(frozen=True)
class Run:
    """A run or data set. Its methods return queries."""

    name: str
    id: int
    config: dict[str, Any]
    """The newest configuration; of a data set, how it was imported."""
    _database: Database
    _seconds: float

    def experiences(self, *, state: str | None = None, arrays: bool = False, at: int | None = None) -> Query:
        """Return the rows of experience_view.

        Args:
            state: keep the rows in this state, such as "ready" or "trained".
            arrays: add token_ids, action_mask, and the logprobs and versions of the trained tokens, as lists.
                They are NULL for a row that has none, or whose arrays were pruned.
            at: a trainer step. Return the rows that this step was trained on, in its order, with the reward,
                advantage, weight and staleness recorded at its draw.
        """
        if state is not None and state not in list(ExperienceState):
            raise ConfigError(f"There is no state '{state}'; {hint(state, list(ExperienceState))}")
        source = self._of_view("experience_view") if at is None else self._drawn(at)
        rows = Query(self._database, self._seconds, source, "id" if arrays else None)
        return rows if state is None else rows.where("state = %s", state)

    def groups(self) -> Query:
        """Return the rollout groups: state, numbers of members, versions and rewards."""
        return self._query(query("groups_of_run"), run_id=self.id)

    def batches(self) -> Query:
        """Return the rows of batch_view, one for each trainer step."""
        return Query(self._database, self._seconds, self._of_view("batch_view"))

    def metrics(self) -> Query:
        """Return the recorded metrics: role, step, name and value."""
        return self._query(query("metrics_of_run"), run_id=self.id)

    def rewards(self) -> Query:
        """Return all reward events, also those that a later one of the same name replaced."""
        return self._query(query("rewards_of_run"), run_id=self.id)

    def _of_view(self, view: str) -> Bound:
        return bind(f"SELECT * FROM trinity.{view} WHERE run = %s", [self.name])

    def _query(self, statement: str, **values: Any) -> Query:
        return Query(self._database, self._seconds, bind(statement, values))

    def _drawn(self, step: int) -> Bound:
        return bind(query("experiences_of_step"), {"run_id": self.id, "step": step})

    def __repr__(self) -> str:
        return f"<trinity_db.Run: {self.name}>"


def find(database: Database, name: str, seconds: float) -> Run:
    """Return the run of a name.

    Raises:
        NotFound: with the most similar name.
    """
    with database.transaction(read_only=True) as tx:
        row = runs.find(tx, name, "run or data set")
    return Run(row.name, row.id, row.config, database, seconds)
