"""Checks of the roles' work in the store: rows given up, dead workers, and inactive runs."""

from pathlib import Path

from trinity_db.config.base import lance_uri
from trinity_db.insight.checks import horizon
from trinity_db.insight.checks.finding import Connection, Finding, fail, ok, span, warn
from trinity_db.schema.queries import query
from trinity_db.schema.states import WorkerRole
from trinity_db.store.lost_commits import describe
from trinity_db.worker.service import LEASE_SECONDS

FULL_SHARE = 0.1  # share of the 8 GB queue: notifications are a few bytes and are read within a second

RESTING = {
    "crashed": "crashed: a worker ended without signing off; trinity-db run CONFIG resumes it",
    "stopped": "is stopped: all its workers signed off; trinity-db run CONFIG resumes it",
    "new": "is new: no worker has started yet",
}


def dead_letters(connection: Connection) -> list[Finding]:
    """Check for rows that a processor could not judge."""
    findings = [
        warn(
            "work failed",
            f"run '{row['run']}': {row['rows']} rows were given up ({row['reason']})",
            "fix the processor; its errors: trinity-db sql "
            f"\"select experience_id, detail from drop where reason = '{row['reason']}'\"",
            row["run"],
            {"reason": row["reason"]},
        )
        for row in connection.execute(query("doctor_dead_letters"))
    ]
    return findings or [ok("work failed", "no processor has given up a row")]


def silent_workers(connection: Connection) -> list[Finding]:
    """Check for dead workers that still hold rows, groups or batches, which no other worker has rescued
    yet."""
    findings = []
    for row in connection.execute(query("doctor_silent_workers"), {"lease_seconds": LEASE_SECONDS}):
        leases = ", ".join(f"{row[kind]} {kind}" for kind in ("rows", "groups", "batches") if row[kind])
        life = "has stopped" if row["is_stopped"] else f"is silent for {span(row['seconds'])}"
        worker = (
            f"{row['role']} worker {row['worker']} of run '{row['run']}' ({row['host']}, pid {row['pid']})"
        )
        remedy = f"start a role of run '{row['run']}': it releases them"
        if row["batches"]:
            remedy = f"start the trainer of run '{row['run']}': it draws them again"
        findings.append(warn("work leases", f"{worker} {life} and holds {leases}", remedy, row["run"]))
    return findings or [ok("work leases", "all leases are held by living workers")]


def runs(connection: Connection) -> list[Finding]:
    """Report the status of each unfinished run, and the roles that are alive."""
    findings = []
    for row in connection.execute(query("doctor_runs"), {"lease_seconds": LEASE_SECONDS}):
        needed = list(WorkerRole) if row["is_online"] else [WorkerRole.TRAIN]
        missing = [role for role in needed if role not in row["alive"]]
        roles = f", no worker is alive to {', '.join(missing)}" if missing else ", all roles are alive"
        words = RESTING.get(row["status"]) or f"is {row['status']}{roles if row['alive'] else ''}"
        findings.append(ok("work runs", f"run '{row['run']}' {words}"))
    return findings or [ok("work runs", "no run is active")]


def setbacks(connection: Connection) -> list[Finding]:
    """Check for commits that a server acknowledged and lost, for example in a failover to a lagging
    replica."""
    findings = [
        warn(
            "work setbacks",
            f"run '{row['run']}': on {row['created_at']:%Y-%m-%d} the server had lost {describe(row)}",
            "make a replica synchronous (synchronous_standby_names), and leave synchronous_commit on",
            row["run"],
        )
        for row in connection.execute(query("doctor_setbacks"))
    ]
    return findings or [ok("work setbacks", "no lost commits were detected")]


def archives(connection: Connection) -> list[Finding]:
    """Check for missing Lance tables. Object stores are not checked."""
    uri = lance_uri()
    if "://" in uri:
        return [ok("work archive", f"at {uri}; not checked from here")]
    findings, there = [], 0
    for row in connection.execute(query("doctor_archives")):
        folder = Path(uri, f"{row['name']}.lance")
        if folder.is_dir():
            there += 1
        else:
            text = f"run '{row['run']}' has {row['rows']} archived rows in {folder}, which does not exist"
            remedy = "mount or restore it, or set TRINITY_DB_LANCE_URI to its location"
            findings.append(fail("work archive", text, remedy))
    whole = f"{there} tables with archived rows exist" if there else "no run has archived rows"
    return findings or [ok("work archive", whole)]


def notifications(connection: Connection) -> list[Finding]:
    """Check for a session that does not read its notifications, so that the server's queue fills up."""
    row = connection.execute(query("doctor_notifications")).fetchone()
    assert row is not None
    text = f"the queue is {row['share']:.0%} full"
    if row["share"] <= FULL_SHARE:
        return [ok("work notifications", text)]
    text += "; once it is full, roles can only poll for work. A listening session does not read it"
    oldest = connection.execute(query("doctor_unread_notifications")).fetchone()
    if oldest is None:
        return [warn("work notifications", text, "end the session that listens in an open transaction")]
    since = f"{oldest['since']:%Y-%m-%d %H:%M:%S %Z}"
    text += f", most likely {horizon.client(oldest)}, {oldest['state']} since {since}"
    return [warn("work notifications", text, f"SELECT pg_terminate_backend({oldest['pid']})")]
