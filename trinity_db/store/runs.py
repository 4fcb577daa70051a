"""Runs: the first role that comes opens one, and it adopts the data sets that it names."""

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from psycopg.types.json import Jsonb

from trinity_db.database import Transaction
from trinity_db.errors import ConfigError, NotFound
from trinity_db.schema.queries import query
from trinity_db.schema.states import Draws, RunKind, RunState
from trinity_db.store import adoption

MAX_NAME_BYTES = 200  # of any run or taskset: fits an index of the database and the name of a file

FINISHED = "finished"  # news of a run


@dataclass(frozen=True)
class Run:
    """A run as it is stored."""

    id: int
    name: str
    kind: RunKind
    state: RunState
    config: dict[str, Any]
    seed: int
    created_at: datetime
    setting_id: int | None
    """The newest of its settings, which has this configuration; data sets have none."""
    is_being_deleted: bool = False

    @property
    def identity(self) -> dict[str, Any]:
        """What tells it from all others.

        Two stores may have a run of the same name and id, but not of the same microsecond.
        """
        created_at = self.created_at.astimezone(UTC).isoformat()
        return {"name": self.name, "id": self.id, "created_at": created_at}


def find(tx: Transaction, name: str, what: str = "run") -> Run:
    """The run of that name; `what` the user takes it for.

    Raises:
        NotFound: with the nearest name there is.
    """
    row = tx.execute(query("find_run"), {"name": name}).fetchone()
    if row is None:
        nearest = get_close_matches(name, names(tx), n=1)
        hint = f"; did you mean '{nearest[0]}'?" if nearest else "."
        raise NotFound(f"There is no {what} '{name}'{hint}")
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
    """The names of all runs and data sets."""
    return [row["name"] for row in tx.execute(query("list_run_names"))]


def check_stays(run: Run) -> None:
    """Make sure that a run is not being deleted.

    Raises:
        ConfigError: it is, or was when the deletion was cut short.
    """
    if run.is_being_deleted:
        raise ConfigError(f"'{run.name}' is being deleted; to finish that, run: trinity-db delete {run.name}")


def check_name(name: str) -> None:
    """Refuse a name that the database cannot hold or a terminal cannot show.

    Raises:
        ConfigError: the name is empty, too long, or has characters that do not print.
    """
    if not name.strip() or not name.isprintable():
        raise ConfigError(f"The name {name!a:.100} must be printable text in one line; use --name.")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise ConfigError(f"The name '{name:.40}...' is longer than {MAX_NAME_BYTES} bytes; use --name.")


@dataclass(frozen=True)
class Difference:
    """A key with another value than the run has."""

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key} was {self.before!r}, is {self.after!r}"


def refuse(tx: Transaction, run: Run, differences: Sequence[Difference]) -> None:
    """What to do where a role comes with another configuration than the run has.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(f"{in_use(run, differences)}; choose another with --set name=...")


def in_use(run: Run, differences: Sequence[Difference]) -> str:
    """How an error begins about a name with another configuration."""
    shown = "; ".join(map(str, differences[:3]))
    more = f" and {len(differences) - 3} more" if len(differences) > 3 else ""
    return f"The run name '{run.name}' is in use with another configuration ({shown}{more})"


def open_run(
    tx: Transaction,
    name: str,
    config: dict[str, Any],
    draws: Draws,
    data: Sequence[str],
    holdout: float,
    complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda stored: stored,
    change: Callable[[Transaction, Run, Sequence[Difference]], None] = refuse,
    as_groups: bool = False,
) -> Run:
    """Create the run, or join it when it exists with this very configuration; then adopt its data sets.

    The rows of other runs that `data` names are adopted after this transaction, by `adoption.adopt_runs`, and
    so are rollout groups, where `as_groups` says that the run learns from these.

    `draws` is what the batches of its algorithm are made of. `complete` gives a stored configuration the keys
    that are newer than it. Where it still differs, `change` gives the run the other configuration, or raises.

    Raises:
        ConfigError: the name belongs to a run with another configuration, or to a data set; or a run to adopt
            from has nothing that this one can learn from; or the run's settings were changed meanwhile.
        NotFound: a data set or run to adopt does not exist.
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
    # No import comes between rows and their pairs, no reward between a row and its copy, and no deletion.
    lock_tasksets(tx, data)
    for source in [_find_source(tx, source, run) for source in data]:
        if as_groups:
            _check_groups(tx, source)
        elif source.kind == RunKind.DATA:
            adoption.adopt_data(tx, run.id, source.id, holdout)
        else:
            _check_source(tx, source, draws, config)
    return run


def create(
    tx: Transaction, name: str, kind: RunKind, config: Mapping[str, Any], draws: Draws | None = None
) -> None:
    """Create a run, or a data set, which draws nothing, unless there is one of that name."""
    values = {"name": name, "kind": kind, "config": Jsonb(config), "draws": draws}
    tx.execute(query("create_run"), values | {"host": socket.gethostname()})


def find_taskset(tx: Transaction, name: str) -> int:
    """The id of a taskset that has tasks.

    Raises:
        NotFound: there is none, or it is empty.
    """
    row = tx.execute(query("find_taskset"), {"name": name}).fetchone()
    if row is None or not row["tasks"]:
        raise NotFound(
            f"There is no taskset '{name}' with tasks; run: trinity-db import FILE --as tasks --name {name}"
        )
    return int(row["id"])


def lock_tasksets(tx: Transaction, names: Sequence[str]) -> None:
    """Let no other import, adoption or deletion touch these until this transaction ends."""
    tx.execute(query("lock_tasksets"), {"names": list(names)})


def hold(tx: Transaction, run: Run) -> None:
    """Let no worker enter itself under the setting that the run had when it was read, and adopt nothing."""
    tx.execute(query("hold_run"), {"run_id": run.id})
    tx.execute(query("hold_setting"), {"setting_id": run.setting_id})


def hold_adopter(tx: Transaction, run: Run) -> None:
    """Let the run keep its configuration until this transaction, which adopts rows, ends.

    Raises:
        ConfigError: as check_setting.
    """
    tx.execute(query("hold_adopter"), {"run_id": run.id})
    check_setting(tx, run)


def check_setting(tx: Transaction, run: Run) -> None:
    """Make sure that the run has the setting that it had when it was read.

    Raises:
        ConfigError: it has another one, or is being deleted.
    """
    if newest_setting(tx, run.id) != run.setting_id:
        raise ConfigError(f"The settings of run '{run.name}' were changed meanwhile: start again with them.")


def newest_setting(tx: Transaction, run_id: int) -> int | None:
    """The setting under which workers may enter themselves now; None where the run is being deleted."""
    row = tx.execute(query("newest_setting"), {"run_id": run_id}).fetchone()
    assert row is not None
    setting_id: int | None = row["id"]
    return setting_id


def is_finished(tx: Transaction, run_id: int) -> bool:
    """Whether the trainer has done all that was configured, or the run is being deleted.

    Raises:
        NotFound: the run's own row is gone.
    """
    row = tx.execute(query("run_state"), {"run_id": run_id}).fetchone()
    if row is None:
        raise NotFound(
            f"The store has lost run {run_id}: it was deleted, or the server forgot it with its last commits "
            "(as after a failover to a replica behind). Start the same command again: the run begins anew."
        )
    return bool(row["state"] == RunState.FINISHED)


def finish(tx: Transaction, run_id: int) -> None:
    """Say that the configured work is done; the other roles end when they hear it."""
    tx.execute(query("finish_run"), {"run_id": run_id})
    announce(tx, run_id, FINISHED)


def announce(tx: Transaction, run_id: int, news: str = "") -> None:
    """Wake the roles that wait on this run, after this transaction has committed. A wake-up may get lost.

    Args:
        news: FINISHED, or "": there may be something to do.
    """
    tx.announce(channel(run_id), news)


def channel(run_id: int) -> str:
    """The channel of `announce`."""
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
    """Refuse another run that has nothing that a run with these draws can learn from.

    Raises:
        ConfigError: saying what it lacks, and what to do.
    """
    if adoption.missing(tx, source.id, "rows"):
        named = ", ".join(source.config.get("data") or ())
        instead = f"name what it learned from: {named}" if named else "wait until it has some"
        raise ConfigError(
            f"data: run '{source.name}' has no rollouts of its own that are done with processing; {instead}."
        )
    derives = (config.get("processors") or {}).get("pair") is not None
    if draws == "pairs" and not derives and adoption.missing(tx, source.id, "pairs"):
        raise ConfigError(
            f"data: run '{source.name}' has no pairs; to derive them from its rewards, add "
            "processors: {pair: {}}."
        )
    needed = {"labels": ("rewards", "pairs"), "pairs": ("rewards",) if derives else ()}.get(draws, ())
    if needed and all(adoption.missing(tx, source.id, what) for what in needed):
        raise ConfigError(
            f"data: the rows of run '{source.name}' have no rewards; give them some with: "
            f"trinity-db rescore {source.name}"
        )


def _check_groups(tx: Transaction, source: Run) -> None:
    """Refuse a run or data set without rollout groups whose rewards can be compared.

    Raises:
        ConfigError: saying what it lacks, and what to do.
    """
    what = f"{'run' if source.kind == RunKind.TRAIN else 'data set'} '{source.name}'"
    if adoption.missing(tx, source.id, "rows"):
        raise ConfigError(
            f"data: {what} has no rollout groups to compare rewards in; name a run that explored, or import "
            "attempts --as traces or --as trajectories."
        )
    if adoption.missing(tx, source.id, "rewards"):
        raise ConfigError(
            f"data: the rows of {what} have no rewards; give them some with trinity-db reward or rescore."
        )


def _differences(stored: Any, given: Any, path: str = "") -> list[Difference]:
    if isinstance(stored, dict) and isinstance(given, dict):
        return [
            difference
            for key in sorted(stored.keys() | given.keys())
            for difference in _differences(stored.get(key), given.get(key), f"{path}.{key}" if path else key)
        ]
    return [] if stored == given else [Difference(path, stored, given)]
