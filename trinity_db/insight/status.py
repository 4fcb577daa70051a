"""Status of runs and its wording, for `trinity-db status` and for the page.

The queries are in schema/queries/status.sql.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from psycopg.rows import DictRow

from trinity_db.errors import NotFound
from trinity_db.insight.words import moment
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.store import retention, runs
from trinity_db.store.evaluations import describe as describe_evaluation
from trinity_db.store.lost_commits import describe as describe_setback
from trinity_db.worker.service import LEASE_SECONDS

RATE_SECONDS = 60  # short enough to see a stall, long enough to average over batches
RECENT_BATCHES = 20
NEWEST_VERSIONS = 5
MUCH_WAITING = 0.25  # share of the time from which a remedy is suggested

COUNTS = {
    "waiting": ("raw", "clean", "scored"),
    "ready": ("ready",),
    "leased": ("leased",),
    "trained": ("trained",),
    "gone": ("dropped", "expired"),
}
"""Columns of a run's line, with the states of experiences, or of pairs, that each counts."""


def overview(database: Database, run_id: int | None = None) -> list[dict[str, Any]]:
    """Return every run, or the run with this id: its state, its workers, and its rows by state."""
    with database.transaction(read_only=True) as tx:
        values = {"run_id": run_id, "lease_seconds": LEASE_SECONDS}
        return tx.execute(query("status_runs"), values).fetchall()


def waiting(database: Database, run_id: int) -> str | None:
    """Describe which side of a run waits for the other; None before that is measured."""
    with database.transaction(read_only=True) as tx:
        return _waiting(measured(tx, run_id)["waiting"])


def measured(tx: Transaction, run_id: int) -> DictRow:
    """Return the figures of a run's latest steps."""
    row = tx.execute(query("status_metrics"), {"run_id": run_id, "batches": RECENT_BATCHES}).fetchone()
    assert row is not None
    return row


def detail(database: Database, name: str, reward_rows: int | None = None) -> dict[str, Any]:
    """Return one run in full; rewards cover this many of the newest rows per version, or all rows for None.

    Raises:
        NotFound: if the run does not exist.
    """
    with database.transaction(read_only=True) as tx:
        run = runs.find(tx, name)
    overviews = overview(database, run.id)
    if not overviews:
        raise NotFound(f"Run '{name}' has just been deleted.")
    with database.transaction(read_only=True) as tx:
        values = {
            "run_id": run.id, "batches": RECENT_BATCHES, "window_seconds": RATE_SECONDS,
            "versions": NEWEST_VERSIONS, "rows": reward_rows,
        }  # fmt: skip
        steps = measured(tx, run.id)
        progress = tx.execute(query("status_detail"), values).fetchone()
        attempts = tx.execute(query("status_attempts"), values).fetchone()
        rewards = tx.execute(query("status_rewards"), values).fetchall()
        retained = retention.of(tx, run.id)
    assert progress is not None
    assert attempts is not None
    return {**overviews[0], **steps, **progress, **attempts, "rewards": rewards, "retention": retained}


def state(run: Mapping[str, Any]) -> str:
    """Describe a run's state and its living roles, and whether its line counts pairs."""
    description = run["state"]
    alive = ", ".join(worker["role"] for worker in run["workers"] if worker["alive"])
    return f"{description}{' (pairs)' if run['draws_pairs'] else ''}{f': {alive}' if alive else ''}"


def counted(run: Mapping[str, Any]) -> Mapping[str, int]:
    """Rows that a run's steps use, by state. For runs on pairs, these are the pairs."""
    counted: Mapping[str, int] = run["preferences" if run["draws_pairs"] else "experiences"]
    return counted


def words(run: Mapping[str, Any]) -> dict[str, str | None]:
    """Format the result of `detail` for people; None for empty parts."""
    return {
        "run": f"{run['run']} ({'train, ' if run['kind'] == 'train' else ''}{run['state']})",
        "created": moment(run["created_at"]),
        "workers": "\n".join(map(worker, run["workers"])) or "none",
        "experiences": _counts(run["experiences"]),
        "groups": _counts(run["groups"]),
        "preferences": _counts(run["preferences"]),
        "policy": _policy(run),
        "checkpoint": _checkpoint(run["checkpoint"]),
        "staleness": _staleness(run["staleness"]),
        "sampling": _sampling(run["sampling"]),
        "rates": _rates(run["rates"]),
        "waiting": _waiting(run["waiting"]),
        "rewards": "\n".join(_reward(version, run) for version in run["rewards"]) or None,
        "evaluations": "\n".join(map(_evaluation, run["evaluations"])) or None,
        "drops": "\n".join(map(_drop, run["drops"])) or None,
        "waits for": _awaited(run["awaited"]) or _unlabelled(run),
        "sampler": _missing(run),
        "parked": _parked(run),
        "late writes": _refused(run["refused"]),
        "given back": _given_back(run["given_back"]),
        "server lost": "\n".join(map(_setback, run["setbacks"])) or None,
        "archived": _archived(run["archived"]),
        "kept": "\n".join(map(_kept, run["retention"])) or None,
    }


def worker(worker: Mapping[str, Any]) -> str:
    life = "alive" if worker["alive"] else f"silent for {worker['silent_seconds']:.0f} s"
    staged = "" if worker["staged_version"] is None else f", has fetched version {worker['staged_version']}"
    return f"{worker['role']} on {worker['host']}, pid {worker['pid']}, {life}{staged}"


def _counts(states: Mapping[str, int]) -> str | None:
    return ", ".join(f"{rows} {state}" for state, rows in states.items()) or None


def _policy(run: Mapping[str, Any]) -> str | None:
    if run["policy_version"] is None:
        return None
    published = moment(run["published_at"])
    return f"version {run['policy_version']}, step {run['step']}, published {published}"


def _checkpoint(latest: Mapping[str, Any] | None) -> str | None:
    """Describe how many steps a crash of the trainer would repeat, and where it would resume."""
    if latest is None:
        return None
    steps = f"{latest['steps_since']} step{'' if latest['steps_since'] == 1 else 's'}"
    if latest["version"] == 0:
        return f"none yet; a crash repeats {steps}" if latest["steps_since"] else "none yet"
    written = moment(datetime.fromisoformat(latest["published_at"]))
    return (
        f"{steps} since the last checkpoint (version {latest['version']}, step {latest['step']}, {written})"
    )


def _staleness(recent: Mapping[str, Any]) -> str | None:
    if recent["max"] is None:
        return None
    return f"mean {recent['mean']:.2f}, max {recent['max']} in the last {recent['batches']} batches"


def _sampling(latest: Mapping[str, Any] | None) -> str | None:
    """Describe how far the engine's log-probabilities differ from the trainer's, for the same weights."""
    if latest is None:
        return None
    return (
        f"engine and trainer differ by {latest['mean']:.2g} nats per token, {latest['outside']:.1%} of the "
        f"tokens outside 0.8 to 1.2, at step {latest['step']}"
    )


def _rates(rates: Mapping[str, Any]) -> str:
    explored, trained = rates["rollouts_per_second"], rates["trained_rows_per_second"]
    return f"{explored:g} rollouts/s, {trained:g} trained rows/s in the last {rates['seconds']} s"


def balance(waiting: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Describe which side waits for the other, and a remedy; None before it is measured, or if it is
    short."""
    trainer, explorers = waiting["trainer"], waiting["explorers"]
    if trainer is None or explorers is None:
        return None, None
    description = f"trainer {trainer:.0%} of its time for rollouts, explorers {explorers:.0%} for training"
    waits = trainer >= MUCH_WAITING, explorers >= MUCH_WAITING
    if not any(waits):
        return description, None
    if waiting["max_staleness"] == 0:
        return description, "they take turns; set max_staleness: 1 to let them overlap"
    if all(waits):
        return description, "check the processors in between, or raise max_staleness"
    if waits[0]:
        return (
            description,
            "add explorers (explorers: N, or trinity-db explore elsewhere), or a faster engine",
        )
    return description, "training is slower; raise max_staleness, or give the trainer more resources"


def _waiting(waiting: Mapping[str, Any]) -> str | None:
    description, remedy = balance(waiting)
    return f"{description}: {remedy}" if remedy else description


def _reward(version: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """Describe the rewards of a version's rollouts, or its last step's loss if it has no rollouts.

    If rewards changed since, for example through a rescore, shows them at training and now.
    """
    description = f"version {version['version']}: "
    then, now = version["reward"], version["reward_now"]
    if then is not None:
        changed = "" if f"{now:.3f}" == f"{then:.3f}" else f" at training, {now:.3f} now"
        return f"{description}{then:.3f}{changed}, experiences {version['experiences']}"
    if version["experiences"]:
        why = "not scored yet" if run["finished_at"] is None else "not scored before the run's end"
        return f"{description}{why}, experiences {version['experiences']}"
    loss = "" if version["loss"] is None else f", loss {version['loss']:.4g} at step {version['step']}"
    return f"{description}no rollouts{loss}"


def _evaluation(evaluation: Mapping[str, Any]) -> str:
    """Describe the newest evaluation on a taskset."""
    return describe_evaluation(evaluation)


def _drop(drop: Mapping[str, Any]) -> str:
    rows = ", ".join(
        f"{kind} {drop[kind]}" for kind in ("experiences", "groups", "preferences") if drop[kind]
    )
    where = drop["stage"] if drop["step"] is None else f"{drop['stage']}, {drop['step']}"
    return f"{drop['reason']} ({where}): {rows}"


def _awaited(rewards: Mapping[str, Any] | None) -> str | None:
    """Describe the rewards that a run with requires_reward waits for; awaited_reward_view lists the rows."""
    if rewards is None:
        return None
    experiences, groups = rewards["experiences"], rewards["groups"]
    return f"rewards from {rewards['source']}: {experiences} experiences in {groups} groups"


def _parked(run: Mapping[str, Any]) -> str | None:
    """Describe the parked attempts, which wait without occupying a place."""
    if (parked := run["parked"]) is None:
        return None
    since = moment(datetime.fromisoformat(parked["since"]))
    description = f"{parked['attempts']} attempts of {parked['groups']} groups, the longest since {since}"
    answered = f", {parked['answered']} answered" if parked["answered"] else ""
    return f"{description}{answered}: trinity-db parked {run['run']}"


def _unlabelled(run: Mapping[str, Any]) -> str | None:
    """Describe the rows that a run on labels cannot draw yet: those without a reward."""
    if run["finished_at"] is not None or not run["unlabelled"]:
        return None
    return f"a reward, good or bad: {run['unlabelled']} experiences"


def _missing(run: Mapping[str, Any]) -> str | None:
    """Describe what the next draw lacks, although enough groups are ready."""
    if run["finished_at"] is not None or not run["missing"]:
        return None
    parts = ", ".join(f"{count:g} more groups of {part}" for part, count in sorted(run["missing"].items()))
    return f"the next step waits for {parts}; change sampler, or its shares, with --change"


def _refused(writes: Mapping[str, int]) -> str | None:
    """Describe rejected writes of workers whose lease had expired; they are only recorded."""
    return ", ".join(f"{count} {kind}" for kind, count in writes.items() if count) or None


def _given_back(attempts: Mapping[str, Any] | None) -> str | None:
    """Describe attempts that did not start on their explorer, and why. They may have been made since."""
    if attempts is None:
        return None
    why = attempts["why"].removeprefix("given back: ")
    latest = moment(datetime.fromisoformat(attempts["latest"]))
    return f"{attempts['rollouts']} attempts could not start and were given back, last at {latest}: {why}"


def _setback(row: Mapping[str, Any]) -> str:
    """Describe what the server lost, and where the run continued."""
    return describe_setback(row)


def _archived(archive: Mapping[str, int] | None) -> str | None:
    """Describe what was moved from Postgres to Lance."""
    return f"{archive['payloads']} payloads, {archive['bytes'] / 1e6:.1f} MB" if archive else None


def _kept(family: Mapping[str, Any]) -> str:
    """Describe how long old rows of a kind are kept, and how many were removed."""
    age = family["kept_for"] or "forever"
    looked = (
        f", last check ended {moment(family['looked_at'])}"
        if family["looked_at"]
        else ", no check has ended yet"
    )
    return f"{family['family']} {age}, {family['rows']} rows removed ({family['bytes'] / 1e6:.1f} MB){looked}"
