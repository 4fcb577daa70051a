"""Checks of the server: its version, durability and capacity."""

from psycopg.rows import DictRow

from trinity_db.insight.checks.finding import Connection, Finding, fail, ok, warn
from trinity_db.postgres.connection import is_pooled
from trinity_db.postgres.opening import encoding_fault
from trinity_db.schema.queries import query

OLDEST_MAJOR = 15  # the oldest tested PostgreSQL
FREE_CONNECTIONS = 20  # two runs: three roles with two or three each, and commands

LOST_WITHOUT = {
    "fsync": "a power cut may lose or destroy the whole store",
    "synchronous_commit": "a crash of the server loses the commits it acknowledged last",
}


def version(connection: Connection) -> list[Finding]:
    """Check for a version that is too old, and for a read-only standby."""
    row = connection.execute(query("doctor_server")).fetchone()
    assert row is not None
    text = f"PostgreSQL {row['version']}"
    if row["major"] < OLDEST_MAJOR:
        return [fail("server version", text, f"upgrade it to PostgreSQL {OLDEST_MAJOR} or newer")]
    if row["is_standby"]:
        return [fail("server version", f"{text}, a standby", "name the primary server in TRINITY_DB_URL")]
    return [ok("server version", text)]


def durability(connection: Connection) -> list[Finding]:
    """Check whether commits wait until they are on disk, for trinity-db and for other clients."""
    settings = {row["name"]: row for row in connection.execute(query("doctor_settings"))}
    subject = "server durability"
    findings = [
        fail(subject, f"{name} is off ({settings[name]['source']}): {lost}", _switch_on(settings[name]))
        for name, lost in LOST_WITHOUT.items()
        if settings[name]["setting"] == "off"
    ]
    if settings["full_page_writes"]["setting"] == "off":
        torn = "full_page_writes is off: a power cut may tear pages, unless the file system copies on write"
        findings.append(warn(subject, torn, _switch_on(settings["full_page_writes"])))
    for row in connection.execute(query("doctor_lax_roles")):
        database = f" IN DATABASE {row['database']}" if row["database"] else ""
        loses = f"synchronous_commit is off for role {row['role']}: its last commits may be lost in a crash"
        findings.append(warn(subject, loses, f"ALTER ROLE {row['role']}{database} RESET synchronous_commit"))
    return findings or [ok(subject, "fsync, full_page_writes and synchronous_commit are on")]


def log(connection: Connection) -> list[Finding]:
    """Check that the server archives its log (WAL), if it is configured to."""
    row = connection.execute(query("doctor_log")).fetchone()
    assert row is not None
    subject = "server log"
    if not row["is_kept"]:
        return [ok(subject, "not archived: the store can be restored only to the time of a backup")]
    if not row["has_place"]:
        return [
            fail(
                subject,
                "archiving is on, but without archive_command, and the server's disk fills up",
                "set archive_command, or archive_mode = off and restart the server",
            )
        ]
    last = f"{row['last_time']:%Y-%m-%d %H:%M:%S %Z}" if row["last_time"] else "never"
    if row["fails"]:
        text = f"{row['failed']} cannot be archived (last success: {last}), and the server's disk fills up"
        return [fail(subject, text, "fix the archive's destination; the server's messages contain the cause")]
    return [ok(subject, f"archived for point-in-time recovery, last: {last}")]


def connections(connection: Connection) -> list[Finding]:
    """Check for free connections, and for the right to see other sessions."""
    row = connection.execute(query("doctor_connections")).fetchone()
    assert row is not None
    subject = "server connections"
    text = f"{row['used']} of {row['available']} in use"
    remedy = "raise max_connections and restart the server, or end idle sessions"
    is_tight = row["available"] - row["used"] < FREE_CONNECTIONS
    findings = [warn(subject, text, remedy) if is_tight else ok(subject, text)]
    if row["hidden"]:
        unseen = f"role {row['role']} may not see the activity of {row['hidden']} other sessions"
        findings.append(warn("server privileges", unseen, f"GRANT pg_read_all_stats TO {row['role']}"))
    return findings


def encoding(connection: Connection) -> list[Finding]:
    """Check that the database can store every text."""
    if fault := encoding_fault(connection):
        text, _, remedy = fault.partition("; create another: ")
        return [fail("server encoding", text, remedy)]
    return [ok("server encoding", "UTF-8")]


def pooler(connection: Connection) -> list[Finding]:
    """Check for a pooler, through which roles poll for news and trainers for leases."""
    if not is_pooled(connection):
        return [ok("server pooler", "none: connections go directly to the server")]
    text = "connections go through a pooler: roles poll twice a second, as notifications do not reach them"
    return [ok("server pooler", text)]


def autovacuum(connection: Connection) -> list[Finding]:
    """Check that autovacuum is on."""
    settings = {row["name"]: row for row in connection.execute(query("doctor_settings"))}
    off = [settings[name] for name in ("autovacuum", "track_counts") if settings[name]["setting"] == "off"]
    return [
        warn("server autovacuum", f"{row['name']} is off: dead rows are never removed", _switch_on(row))
        for row in off
    ] or [ok("server autovacuum", "on")]


def _switch_on(setting: DictRow) -> str:
    """Return the statement that resets a setting at the level where it was set."""
    name = setting["name"]
    match setting["source"]:
        case "client":
            return f"remove {name} from TRINITY_DB_URL or PGOPTIONS"
        case "database":
            return f"ALTER DATABASE {setting['database']} RESET {name}"
        case "user":
            return f"ALTER ROLE {setting['role']} RESET {name}"
        case "database user":
            return f"ALTER ROLE {setting['role']} IN DATABASE {setting['database']} RESET {name}"
        case "command line":
            return f"start the server without -c {name}=off"
    return f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"
