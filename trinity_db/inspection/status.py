"""What runs are doing, and how it is said: for `trinity-db status` and for the page.

The counting is in schema/queries/status.sql.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from psycopg.rows import DictRow

from trinity_db.database import Database, Transaction
from trinity_db.errors import NotFound
from trinity_db.inspection.words import moment
from trinity_db.schema.queries import query
from trinity_db.service import LEASE_SECONDS
from trinity_db.store import retention, runs
from trinity_db.store.evaluations import describe as describe_evaluation
from trinity_db.store.setbacks import describe as describe_setback

RATE_SECONDS = 60  # short enough to see a stall, long enough to average over batches
RECENT_BATCHES = 20
NEWEST_VERSIONS = 5
MUCH_WAITING = 0.25  # a share of the time that is worth a hint

COUNTS = {
    "waiting": ("raw", "clean", "scored"),
    "ready": ("ready",),
    "leased": ("leased",),
    "trained": ("trained",),
    "gone": ("dropped", "expired"),
}
"""What a run's line counts, and the states of experiences, or of pairs, that count as it."""


def overview(database: Database, run_id: int | None = None) -> list[dict[str, Any]]:
    """Every run, or the one with this id: its state, its workers, and its rows by state."""
    with database.transaction(read_only=True) as tx:
        values = {"run_id": run_id, "lease_seconds": LEASE_SECONDS}
        return tx.execute(query("status_runs"), values).fetchall()


def waiting(database: Database, run_id: int) -> str | None:
    """Which side of a run waits for the other; None before that is measured."""
    with database.transaction(read_only=True) as tx:
        return _waiting(measured(tx, run_id)["waiting"])


def measured(tx: Transaction, run_id: int) -> DictRow:
    """What the metrics of a run's latest steps say of it."""
    row = tx.execute(query("status_metrics"), {"run_id": run_id, "batches": RECENT_BATCHES}).fetchone()
    assert row is not None
    return row


def detail(database: Database, name: str, reward_rows: int | None = None) -> dict[str, Any]:
    """One run in full; with rewards of so many of the newest rows of a version, None: of all.

    Raises:
        NotFound: there is no such run.
    """
    with database.transaction(read_only=True) as tx:
        run = runs.find(tx, name)
    found = overview(database, run.id)
    if not found:
        raise NotFound(f"Run '{name}' was deleted a moment ago.")
    with database.transaction(read_only=True) as tx:
        values = {
            "run_id": run.id, "batches": RECENT_BATCHES, "window_seconds": RATE_SECONDS,
            "versions": NEWEST_VERSIONS, "rows": reward_rows,
        }  # fmt: skip
        steps = measured(tx, run.id)
        progress = tx.execute(query("status_detail"), values).fetchone()
        attempts = tx.execute(query("status_attempts"), values).fetchone()
        rewards = tx.execute(query("status_rewards"), values).fetchall()
        kept = retention.of(tx, run.id)
    assert progress is not None
    assert attempts is not None
    return {**found[0], **steps, **progress, **attempts, "rewards": rewards, "retention": kept}


def state(run: Mapping[str, Any]) -> str:
    """What becomes of a run, and which of its roles are alive; whether its line counts pairs."""
    said = run["state"]
    alive = ", ".join(worker["role"] for worker in run["workers"] if worker["alive"])
    return f"{said}{' (pairs)' if run['draws_pairs'] else ''}{f': {alive}' if alive else ''}"


def counted(run: Mapping[str, Any]) -> Mapping[str, int]:
    """The rows that a run's steps take, by state: those of pairs stay ready, and the pairs are trained on."""
    counted: Mapping[str, int] = run["preferences" if run["draws_pairs"] else "experiences"]
    return counted


def words(run: Mapping[str, Any]) -> dict[str, str | None]:
    """What `detail` found, as people read it; None where there is nothing to say."""
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
        "came too late": _refused(run["refused"]),
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
    """How many steps a crash of the trainer would repeat, and where it would resume."""
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
    """How far the engine's log-probabilities are from the trainer's, for the same weights."""
    if latest is None:
        return None
    return (
        f"engine and trainer differ by {latest['mean']:.2g} nats a token, {latest['outside']:.1%} of the "
        f"tokens outside 0.8 to 1.2, at step {latest['step']}"
    )


def _rates(rates: Mapping[str, Any]) -> str:
    explored, trained = rates["rollouts_per_second"], rates["trained_rows_per_second"]
    return f"{explored:g} rollouts/s, {trained:g} trained rows/s in the last {rates['seconds']} s"


def balance(waiting: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Which side waits for the other, and what helps; None before that is measured, or if little is lost."""
    trainer, explorers = waiting["trainer"], waiting["explorers"]
    if trainer is None or explorers is None:
        return None, None
    said = f"trainer {trainer:.0%} of its time for rollouts, explorers {explorers:.0%} for training"
    waits = trainer >= MUCH_WAITING, explorers >= MUCH_WAITING
    if not any(waits):
        return said, None
    if waiting["max_staleness"] == 0:
        return said, "they take turns; max_staleness: 1 lets them overlap"
    if all(waits):
        return said, "look at what lies between, the processors, or raise max_staleness"
    if waits[0]:
        return said, "add explorers (explorers: N, or trinity-db explore elsewhere), or a faster engine"
    return said, "training is slower; raise max_staleness, or give the trainer more of the machine"


def _waiting(waiting: Mapping[str, Any]) -> str | None:
    said, remedy = balance(waiting)
    return f"{said}: {remedy}" if remedy else said


def _reward(version: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """What the rollouts of a version earned; of a version that wrote none, the loss of its last step.

    Where rewards changed since, as by a rescore, it is what they earned at training, and what they would now.
    """
    said = f"version {version['version']}: "
    then, now = version["reward"], version["reward_now"]
    if then is not None:
        changed = "" if f"{now:.3f}" == f"{then:.3f}" else f" at training, {now:.3f} now"
        return f"{said}{then:.3f}{changed}, experiences {version['experiences']}"
    if version["experiences"]:
        why = "not scored yet" if run["finished_at"] is None else "not scored before the run's end"
        return f"{said}{why}, experiences {version['experiences']}"
    loss = "" if version["loss"] is None else f", loss {version['loss']:.4g} at step {version['step']}"
    return f"{said}no rollouts{loss}"


def _evaluation(one: Mapping[str, Any]) -> str:
    """The newest evaluation on a taskset."""
    return describe_evaluation(one)


def _drop(drop: Mapping[str, Any]) -> str:
    rows = ", ".join(
        f"{kind} {drop[kind]}" for kind in ("experiences", "groups", "preferences") if drop[kind]
    )
    where = drop["stage"] if drop["step"] is None else f"{drop['stage']}, {drop['step']}"
    return f"{drop['reason']} ({where}): {rows}"


def _awaited(rewards: Mapping[str, Any] | None) -> str | None:
    """What a run with requires_reward cannot train on yet; which rows these are is in awaited_reward_view."""
    if rewards is None:
        return None
    experiences, groups = rewards["experiences"], rewards["groups"]
    return f"rewards from {rewards['source']}: {experiences} experiences in {groups} groups"


def _parked(run: Mapping[str, Any]) -> str | None:
    """Attempts that wait without a place, for a person or a time."""
    if (parked := run["parked"]) is None:
        return None
    since = moment(datetime.fromisoformat(parked["since"]))
    said = f"{parked['attempts']} attempts of {parked['groups']} groups, the longest since {since}"
    answered = f", {parked['answered']} answered" if parked["answered"] else ""
    return f"{said}{answered}: trinity-db parked {run['run']}"


def _unlabelled(run: Mapping[str, Any]) -> str | None:
    """Rows that a run which learns from labels cannot draw yet: those without a reward."""
    if run["finished_at"] is not None or not run["unlabelled"]:
        return None
    return f"a reward, good or bad: {run['unlabelled']} experiences"


def _missing(run: Mapping[str, Any]) -> str | None:
    """What the next step of a run lacks to be drawn, although enough groups are ready."""
    if run["finished_at"] is not None or not run["missing"]:
        return None
    parts = ", ".join(f"{count:g} more groups of {part}" for part, count in sorted(run["missing"].items()))
    return f"the next step waits for {parts}; change sampler, or its shares, with --change"


def _refused(writes: Mapping[str, int]) -> str | None:
    """Writes of workers whose lease had ended: kept for the record, and nothing else."""
    return ", ".join(f"{count} {what}" for what, count in writes.items() if count) or None


def _given_back(attempts: Mapping[str, Any] | None) -> str | None:
    """Attempts that did not begin where they were tried, and why not. They may have been made since."""
    if attempts is None:
        return None
    why = attempts["why"].removeprefix("given back: ")
    latest = moment(datetime.fromisoformat(attempts["latest"]))
    return f"{attempts['rollouts']} attempts did not begin where they were tried, last at {latest}: {why}"


def _setback(row: Mapping[str, Any]) -> str:
    """What the server lost, and where the run went on."""
    return describe_setback(row)


def _archived(archive: Mapping[str, int] | None) -> str | None:
    """What has left Postgres for Lance."""
    return f"{archive['payloads']} payloads, {archive['bytes'] / 1e6:.1f} MB" if archive else None


def _kept(family: Mapping[str, Any]) -> str:
    """How long old rows of a family are kept, and how many went."""
    age = family["kept_for"] or "for ever"
    looked = (
        f", last look ended {moment(family['looked_at'])}"
        if family["looked_at"]
        else ", no look has ended yet"
    )
    return f"{family['family']} {age}, {family['rows']} rows removed ({family['bytes'] / 1e6:.1f} MB){looked}"
