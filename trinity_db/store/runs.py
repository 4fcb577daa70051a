"""Runs: the first role to start opens the run, and it adopts the data sets that its configuration names."""

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from psycopg.types.json import Jsonb

from trinity_db.errors import ConfigError, NotFound
from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query
from trinity_db.schema.states import Draws, RunKind, RunState
from trinity_db.store import adoption

MAX_NAME_BYTES = 200  # length of a run or taskset name: fits a database index and a file name

FINISHED = "finished"  # see `announce`

NO_SOURCES = adoption.Sources()


@dataclass(frozen=True)
class Run:
    """A stored run."""

    id: int
    name: str
    kind: RunKind
    state: RunState
    config: dict[str, Any]
    seed: int
    created_at: datetime
    setting_id: int | None
    """Newest row of its settings, with this configuration; None for data sets."""
    is_being_deleted: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """Identity of the run across stores.

        Two stores may have a run with the same name and id, but not created in the same microsecond.
        """
        created_at = self.created_at.astimezone(UTC).isoformat()
        return {"name": self.name, "id": self.id, "created_at": created_at}


def find(tx: Transaction, name: str, noun: str = "run") -> Run:
    """Return the run of a name; `noun` is the user's word for it in the error message.

    Raises:
        NotFound: with the most similar existing name.
    """
    row = tx.execute(query("find_run"), {"name": name}).fetchone()
    if row is None:
        nearest = get_close_matches(name, names(tx), n=1)
        hint = f"; did you mean '{nearest[0]}'?" if nearest else "."
        raise NotFound(f"There is no {noun} '{name}'{hint}")
    return Run(
        row["id"],
        row["name"],
        RunKind(row["kind"]),
        RunState(row["state"]),
        row["config"],
        row["seed"],
        row["created_at"],
        row["setting_id"],
        row["is_being_deleted"],
    )


def names(tx: Transaction) -> list[str]:
    """List the names of all runs and data sets."""
    return [row["name"] for row in tx.execute(query("list_run_names"))]


def check_stays(run: Run) -> None:
    """Check that a run is not being deleted.

    Raises:
        ConfigError: if it is being deleted, or its deletion was interrupted.
    """
    if run.is_being_deleted:
        raise ConfigError(f"'{run.name}' is being deleted; to finish that, run: trinity-db delete {run.name}")


def check_name(name: str) -> None:
    """Check that the database can hold and a terminal can show a name.

    Raises:
        ConfigError: if the name is empty, too long, or has unprintable characters.
    """
    if not name.strip() or not name.isprintable():
        raise ConfigError(f"The name {name!a:.100} must be printable text in one line; use --name.")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(f"The name '{name:.40}...' is longer than {MAX_NAME_BYTES} bytes; use --name.")


@dataclass(frozen=True)
class Difference:
    """A key whose value differs from the run's."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key} was {self.before!r}, is {self.after!r}"


def refuse(tx: Transaction, run: Run, differences: Sequence[Difference]) -> None:
    """Default reaction to a role whose configuration differs from the run's.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(f"{in_use(run, differences)}; choose another with --set name=...")


def in_use(run: Run, differences: Sequence[Difference]) -> str:
    """Begin the error message about a name in use with another configuration."""
    shown = "; ".join(map(str, differences[:3]))
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    return f"The run name '{run.name}' is in use with another configuration ({shown}{more})"


def open_run(
    tx: Transaction,
    name: str,
    config: dict[str, Any],
    draws: Draws,
    sources: adoption.Sources = NO_SOURCES,
    complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda stored: stored,
    change: Callable[[Transaction, Run, Sequence[Difference]], None] = refuse,
) -> Run:
    """Create the run, or join it if it exists with this exact configuration; then adopt its data sets.

    Rows of other runs, and groups, are adopted after this transaction with `adoption.adopt_runs`.

    `draws` is the unit of its algorithm's batches. `complete` adds to a stored configuration the keys that
    are newer than it. If it still differs, `change` gives the run the other configuration, or raises.

    Raises:
        ConfigError: if the name belongs to a run with another configuration, or to a data set; if a run to
            adopt from has nothing that this one can learn from; or if the settings were changed meanwhile.
        NotFound: if a data set or run to adopt does not exist.
    """
    create(tx, name, RunKind.TRAIN, config, draws)
    run = find(tx, name)
    if run.kind != RunKind.TRAIN:
        raise ConfigError(f"'{name}' is the name of an imported data set; give the run another name.")
    check_stays(run)
    if differences := _differences(complete(run.config), config):
        change(tx, run, differences)
        run = find(tx, name)
    hold_adopter(tx, run)
    # Blocks imports between rows and their pairs, rewards between a row and its copy, and deletions.
    lock_tasksets(tx, sources.names)
    for source in [_find_source(tx, name, run) for name in sources.names]:
        if sources.as_groups:
            _check_groups(tx, source)
        elif source.kind == RunKind.DATA:
            adoption.adopt_data(tx, run.id, source.id, sources.holdout)
        else:
            _check_source(tx, source, draws, config)
    return run


def create(
    tx: Transaction, name: str, kind: RunKind, config: Mapping[str, Any], draws: Draws | None = None
) -> None:
    """Create a run, or a data set (which draws nothing), unless the name exists."""
    values = {"name": name, "kind": kind, "config": Jsonb(config), "draws": draws}
    tx.execute(query("create_run"), values | {"host": socket.gethostname()})


def find_taskset(tx: Transaction, name: str) -> int:
    """Return the id of a taskset that has tasks.

    Raises:
        NotFound: if it does not exist or is empty.
    """
    row = tx.execute(query("find_taskset"), {"name": name}).fetchone()
    if row is None or not row["tasks"]:
        others = [other["name"] for other in tx.execute(query("taskset_names"))]
        nearest = get_close_matches(name, others, n=1)
        hint = f"did you mean '{nearest[0]}'? Or " if nearest else ""
        remedy = f"run: trinity-db import FILE --as tasks --name {name}"
        raise NotFound(f"There is no taskset '{name}' with tasks; {hint}{remedy}")
    return int(row["id"])


def lock_tasksets(tx: Transaction, names: Sequence[str]) -> None:
    """Block other imports, adoptions and deletions of these tasksets until this transaction ends."""
    tx.execute(query("lock_tasksets"), {"names": list(names)})


def hold(tx: Transaction, run: Run) -> None:
    """Block workers from registering with the setting that was read, and from adopting rows."""
    tx.execute(query("hold_run"), {"run_id": run.id})
    tx.execute(query("hold_setting"), {"setting_id": run.setting_id})


def hold_adopter(tx: Transaction, run: Run) -> None:
    """Keep the run's configuration unchanged until this transaction, which adopts rows, ends.

    Raises:
        ConfigError: see check_setting.
    """
    tx.execute(query("hold_adopter"), {"run_id": run.id})
    check_setting(tx, run)


def check_setting(tx: Transaction, run: Run) -> None:
    """Check that the run still has the setting that was read.

    Raises:
        ConfigError: if the setting changed, or the run is being deleted.
    """
    if newest_setting(tx, run.id) != run.setting_id:
        raise ConfigError(f"The settings of run '{run.name}' were changed meanwhile: start again with them.")


def newest_setting(tx: Transaction, run_id: int) -> int | None:
    """Return the setting with which workers may register now; None if the run is being deleted."""
    row = tx.execute(query("newest_setting"), {"run_id": run_id}).fetchone()
    assert row is not None
    setting_id: int | None = row["id"]
    return setting_id


def is_finished(tx: Transaction, run_id: int) -> bool:
    """Whether the trainer has completed all configured work, or the run is being deleted.

    Raises:
        NotFound: if the row of the run is gone.
    """
    row = tx.execute(query("run_state"), {"run_id": run_id}).fetchone()
    if row is None:
        raise NotFound(
            f"The store has lost run {run_id}: it was deleted, or the server lost its last commits (as in a "
            "failover to a lagging replica). Start the same command again: the run starts from scratch."
        )
    return bool(row["state"] == RunState.FINISHED)


def finish(tx: Transaction, run_id: int) -> None:
    """Record that the configured work is complete; the other roles exit when they are notified."""
    tx.execute(query("finish_run"), {"run_id": run_id})
    announce(tx, run_id, FINISHED)


def announce(tx: Transaction, run_id: int, news: str = "") -> None:
    """Notify the roles that wait on this run, once this transaction has committed; delivery is best effort.

    Args:
        news: FINISHED, or "" (there may be work).
    """
    tx.announce(channel(run_id), news)


def channel(run_id: int) -> str:
    """Name of the notification channel."""
    return f"trinity_run_{run_id}"


def _find_source(tx: Transaction, name: str, run: Run) -> Run:
    if name == run.name:
        raise ConfigError(f"data: '{name}' is this run itself; name a data set or another run.")
    source = _find_named(tx, name)
    check_stays(source)
    if source.kind == RunKind.TRAIN and adoption.hold_source(tx, source.id):
        raise ConfigError(f"data: run '{name}' is being deleted; leave it out.")
    return source


def _find_named(tx: Transaction, name: str) -> Run:
    try:
        return find(tx, name, "data set or run")
    except NotFound:
        row = tx.execute(query("find_taskset"), {"name": name}).fetchone()
        if row is None:
            raise
    raise ConfigError(f"data: '{name}' has tasks, and no responses to learn from; name it under taskset.")


def _check_source(tx: Transaction, source: Run, draws: Draws, config: Mapping[str, Any]) -> None:
    """Check that another run has something that a run with these draws can learn from.

    Raises:
        ConfigError: if not, with the missing part and the remedy.
    """
    if adoption.missing(tx, source.id, "rows"):
        named = ", ".join(source.config.get("data") or ())
        instead = f"name what it learned from: {named}" if named else "wait until it has some"
        raise ConfigError(
            f"data: run '{source.name}' has no rollouts of its own that are fully processed; {instead}."
        )
    derives = (config.get("processors") or {}).get("pair") is not None
    if draws == "pairs" and not derives and adoption.missing(tx, source.id, "pairs"):
        raise ConfigError(
            f"data: run '{source.name}' has no pairs; to derive them from its rewards, add "
            "processors: {pair: {}}."
        )
    needed = {"labels": ("rewards", "pairs"), "pairs": ("rewards",) if derives else ()}.get(draws, ())
    if needed and all(adoption.missing(tx, source.id, requirement) for requirement in needed):
        raise ConfigError(
            f"data: the rows of run '{source.name}' have no rewards; give them some with: "
            f"trinity-db rescore {source.name}"
        )


def _check_groups(tx: Transaction, source: Run) -> None:
    """Check that a run or data set has rollout groups with comparable rewards.

    Raises:
        ConfigError: if not, with the missing part and the remedy.
    """
    subject = f"{'run' if source.kind == RunKind.TRAIN else 'data set'} '{source.name}'"
    if adoption.missing(tx, source.id, "rows"):
        raise ConfigError(
            f"data: {subject} has no rollout groups to compare rewards in; name a run that explored, or "
            "import attempts --as traces or --as trajectories."
        )
    if adoption.missing(tx, source.id, "rewards"):
        raise ConfigError(
            f"data: the rows of {subject} have no rewards; give them some with trinity-db reward or rescore."
        )


def _differences(stored: Any, requested: Any, path: str = "") -> list[Difference]:
    if isinstance(stored, dict) and isinstance(requested, dict):
        return [
            difference
            for key in sorted(stored.keys() | requested.keys())
            for difference in _differences(
                stored.get(key), requested.get(key), f"{path}.{key}" if path else key
            )
        ]
    return [] if stored == requested else [Difference(path, stored, requested)]
