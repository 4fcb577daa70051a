"""Checks of the server: its version, whether what it commits lasts, and whether it has room for us."""

from psycopg.rows import DictRow

from trinity_db.database import is_pooled
from trinity_db.diagnosis.finding import Connection, Finding, fail, ok, warn
from trinity_db.opening import encoding_fault
from trinity_db.schema.queries import query

OLDEST_MAJOR = 15  # the oldest PostgreSQL that is tested
FREE_CONNECTIONS = 20  # two runs: three roles with two or three each, and commands

LOST_WITHOUT = {
    "fsync": "a power cut may lose or destroy the whole store",
    "synchronous_commit": "a crash of the server loses what it acknowledged last",
}


def version(connection: Connection) -> list[Finding]:
    """Old enough to be unknown, or a standby that takes no writes."""
    row = connection.execute(query("doctor_server")).fetchone()
    assert row is not None
    found = f"PostgreSQL {row['version']}"
    if row["major"] < OLDEST_MAJOR:
        return [fail("server version", found, f"upgrade it to PostgreSQL {OLDEST_MAJOR} or newer")]
    if row["is_standby"]:
        return [fail("server version", f"{found}, a standby", "name the primary server in TRINITY_DB_URL")]
    return [ok("server version", found)]


def durability(connection: Connection) -> list[Finding]:
    """Whether a commit waits until it is on disk, for us and for others."""
    settings = {row["name"]: row for row in connection.execute(query("doctor_settings"))}
    what = "server durability"
    found = [
        fail(what, f"{name} is off ({settings[name]['source']}): {lost}", _switch_on(settings[name]))
        for name, lost in LOST_WITHOUT.items()
        if settings[name]["setting"] == "off"
    ]
    if settings["full_page_writes"]["setting"] == "off":
        torn = "full_page_writes is off: a power cut may tear pages, unless the file system copies on write"
        found.append(warn(what, torn, _switch_on(settings["full_page_writes"])))
    for row in connection.execute(query("doctor_lax_roles")):
        place = f" IN DATABASE {row['database']}" if row["database"] else ""
        loses = f"synchronous_commit is off for role {row['role']}: its last commits may be lost in a crash"
        found.append(warn(what, loses, f"ALTER ROLE {row['role']}{place} RESET synchronous_commit"))
    return found or [ok(what, "fsync, full_page_writes and synchronous_commit are on")]


def log(connection: Connection) -> list[Finding]:
    """Whether the server hands over its log (WAL), if it is told to."""
    row = connection.execute(query("doctor_log")).fetchone()
    assert row is not None
    what = "server log"
    if not row["is_kept"]:
        return [
            ok(what, "not kept: the store can be restored from backups alone, and to no time between them")
        ]
    if not row["has_place"]:
        return [
            fail(
                what,
                "is to be handed over, but to no place, and the server's disk fills up",
                "set archive_command, or archive_mode = off and start the server again",
            )
        ]
    last = f"{row['last_time']:%Y-%m-%d %H:%M:%S %Z}" if row["last_time"] else "never"
    if row["fails"]:
        text = f"{row['failed']} cannot be handed over (last success: {last}), and the server's disk fills up"
        return [
            fail(what, text, "mend the place that it goes to; the server's own messages say what fails there")
        ]
    return [ok(what, f"handed over for restores to a time, last: {last}")]


def connections(connection: Connection) -> list[Finding]:
    """How many connections are left, and whether we may see whose the others are."""
    row = connection.execute(query("doctor_connections")).fetchone()
    assert row is not None
    what = "server connections"
    text = f"{row['used']} of {row['available']} in use"
    remedy = "raise max_connections and restart the server, or end sessions that idle"
    is_tight = row["available"] - row["used"] < FREE_CONNECTIONS
    found = [warn(what, text, remedy) if is_tight else ok(what, text)]
    if row["hidden"]:
        unseen = f"role {row['role']} may not see what {row['hidden']} sessions of others do"
        found.append(warn("server privileges", unseen, f"GRANT pg_read_all_stats TO {row['role']}"))
    return found


def encoding(connection: Connection) -> list[Finding]:
    """Whether the database can hold every text."""
    if fault := encoding_fault(connection):
        found, _, remedy = fault.partition("; create another: ")
        return [fail("server encoding", found, remedy)]
    return [ok("server encoding", "UTF-8")]


def pooler(connection: Connection) -> list[Finding]:
    """Whether connections go through a pooler, where roles ask for news and trainers wait for leases."""
    if not is_pooled(connection):
        return [ok("server pooler", "none: connections lead to the server itself")]
    text = "connections go through a pooler: roles ask for news twice a second, as none is announced to them"
    return [ok("server pooler", text)]


def autovacuum(connection: Connection) -> list[Finding]:
    """Whether the server cleans up after updates by itself."""
    settings = {row["name"]: row for row in connection.execute(query("doctor_settings"))}
    off = [settings[name] for name in ("autovacuum", "track_counts") if settings[name]["setting"] == "off"]
    return [
        warn("server autovacuum", f"{row['name']} is off: dead rows are never removed", _switch_on(row))
        for row in off
    ] or [ok("server autovacuum", "on")]


def _switch_on(setting: DictRow) -> str:
    """The statement that takes a setting back, at the level that made it."""
    name = setting["name"]
    match setting["source"]:
        case "client":
            return f"take {name} out of TRINITY_DB_URL, or of PGOPTIONS"
        case "database":
            return f"ALTER DATABASE {setting['database']} RESET {name}"
        case "user":
            return f"ALTER ROLE {setting['role']} RESET {name}"
        case "database user":
            return f"ALTER ROLE {setting['role']} IN DATABASE {setting['database']} RESET {name}"
        case "command line":
            return f"start the server without -c {name}=off"
    return f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()"
