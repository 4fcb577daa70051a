"""Checks of what the roles left in the store: rows given up, workers that are gone, runs that stand still."""

from pathlib import Path

from trinity_db.diagnosis import horizon
from trinity_db.diagnosis.finding import Connection, Finding, fail, ok, span, warn
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.service import LEASE_SECONDS
from trinity_db.settings import lance_uri
from trinity_db.store.setbacks import describe

FULL_SHARE = 0.1  # of the queue of notifications, 8 GB: ours are a few bytes and are heard within a second

RESTING = {
    "crashed": "crashed: a worker ended without signing off; trinity-db run CONFIG continues it",
    "stopped": "is stopped: all its workers signed off; trinity-db run CONFIG continues it",
    "new": "is new: no worker has started yet",
}


def dead_letters(connection: Connection) -> list[Finding]:
    """Rows that a processor could not judge."""
    found = [
        warn(
            "work failed",
            f"run '{row['run']}': {row['rows']} rows were given up ({row['reason']})",
            "mend the processor; the errors: trinity-db sql "
            f"\"select experience_id, detail from drop where reason = '{row['reason']}'\"",
            row["run"],
            {"reason": row["reason"]},
        )
        for row in connection.execute(query("doctor_dead_letters"))
    ]
    return found or [ok("work failed", "no row was given up by a processor")]


def silent_workers(connection: Connection) -> list[Finding]:
    """Workers that are gone and still hold rows, groups or batches: no other worker has rescued these yet."""
    found = []
    for row in connection.execute(query("doctor_silent_workers"), {"lease_seconds": LEASE_SECONDS}):
        held = ", ".join(f"{row[kind]} {kind}" for kind in ("rows", "groups", "batches") if row[kind])
        life = "has stopped" if row["is_stopped"] else f"is silent for {span(row['seconds'])}"
        who = f"{row['role']} worker {row['worker']} of run '{row['run']}' ({row['host']}, pid {row['pid']})"
        remedy = f"start a role of run '{row['run']}': it gives them back"
        if row["batches"]:
            remedy = f"start the trainer of run '{row['run']}': it draws them again"
        found.append(warn("work leases", f"{who} {life} and holds {held}", remedy, row["run"]))
    return found or [ok("work leases", "everything that is held is held by a worker that is alive")]


def runs(connection: Connection) -> list[Finding]:
    """The status of each run whose work is not done, and which roles an active one has."""
    found = []
    for row in connection.execute(query("doctor_runs"), {"lease_seconds": LEASE_SECONDS}):
        needed = list(WorkerRole) if row["is_online"] else [WorkerRole.TRAIN]
        missing = [role for role in needed if role not in row["alive"]]
        roles = f", without a live worker to {', '.join(missing)}" if missing else ", all roles are alive"
        words = RESTING.get(row["status"]) or f"is {row['status']}{roles if row['alive'] else ''}"
        found.append(ok("work runs", f"run '{row['run']}' {words}"))
    return found or [ok("work runs", "no run is active")]


def setbacks(connection: Connection) -> list[Finding]:
    """Commits that a server acknowledged and lost, as after a failover to a replica that was behind."""
    found = [
        warn(
            "work setbacks",
            f"run '{row['run']}': on {row['created_at']:%Y-%m-%d} the server had lost {describe(row)}",
            "let a replica be synchronous (synchronous_standby_names), and leave synchronous_commit on",
            row["run"],
        )
        for row in connection.execute(query("doctor_setbacks"))
    ]
    return found or [ok("work setbacks", "no trainer found that the server had lost a commit")]


def archives(connection: Connection) -> list[Finding]:
    """Lance tables that are missing. Object stores are not looked at."""
    uri = lance_uri()
    if "://" in uri:
        return [ok("work archive", f"at {uri}; not looked for from here")]
    found, there = [], 0
    for row in connection.execute(query("doctor_archives")):
        folder = Path(uri, f"{row['name']}.lance")
        if folder.is_dir():
            there += 1
        else:
            text = f"run '{row['run']}' has {row['rows']} archived rows in {folder}, which is not there"
            remedy = "mount or restore it, or say where it is in TRINITY_DB_LANCE_URI"
            found.append(fail("work archive", text, remedy))
    whole = f"{there} tables with archived rows are there" if there else "no run has archived rows"
    return found or [ok("work archive", whole)]


def notifications(connection: Connection) -> list[Finding]:
    """Whether a session listens and reads no notifications, so that the server's queue fills up."""
    row = connection.execute(query("doctor_notifications")).fetchone()
    assert row is not None
    found = f"the queue is {row['share']:.0%} full"
    if row["share"] <= FULL_SHARE:
        return [ok("work notifications", found)]
    found += "; once it is full, roles find new work by polling alone. A session that listens keeps it full"
    oldest = connection.execute(query("doctor_unread_notifications")).fetchone()
    if oldest is None:
        return [warn("work notifications", found, "end the session that listens in an open transaction")]
    since = f"{oldest['since']:%Y-%m-%d %H:%M:%S %Z}"
    found += f", most likely {horizon.client(oldest)}, {oldest['state']} since {since}"
    return [warn("work notifications", found, f"SELECT pg_terminate_backend({oldest['pid']})")]
