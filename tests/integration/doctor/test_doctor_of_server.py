"""What the doctor finds at the server, its sessions and its disks: all is real, and remedies mend it."""

import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.command_line import CommandLine
from tests.support.complaints import Examine, one, session
from tests.support.postgres import cluster_18, discard, execute, new_home, on_database, start
from tests.support.rows import WAIT_SECONDS
from trinity_db.errors import TrinityError
from trinity_db.insight.checks import horizon, installation, server
from trinity_db.postgres import embedded, opening, upgrades
from trinity_db.postgres.connection import connect


def test_a_healthy_store_gives_no_cause_for_complaint(url: str, examine: Examine) -> None:
    assert examine(url) == []


def test_people_read_one_line_a_finding(
    url: str, monkeypatch: pytest.MonkeyPatch, command_line: CommandLine
) -> None:
    execute(url, "DROP VIEW trinity.lease_view")
    monkeypatch.setenv("TRINITY_DB_URL", url)
    done = command_line("doctor")
    assert done.code == 1
    lines = [line.split(maxsplit=3) for line in done.stdout.splitlines() if line]
    assert {line[0] for line in lines} == {"ok", "fail"}
    assert ["fail", "schema", "views", "missing: lease_view; remedy: trinity-db db upgrade"] in lines
    assert ["ok", "work", "archive", "no run has archived rows"] in lines


@pytest.mark.parametrize(("name", "level"), [("fsync", "fail"), ("full_page_writes", "warn")])
def test_a_server_that_may_lose_commits_is_found(
    durable: str, url: str, examine: Examine, name: str, level: str
) -> None:
    with session(durable) as admin:
        admin.autocommit = True
        try:
            admin.execute(f"ALTER SYSTEM SET {name} = off")
            wait_for_setting(admin, name, "off")
            finding = one(examine(url), "server durability")
            assert finding["level"] == level
            statement, reload = finding["remedy"].split("; ")
            admin.execute(statement)
            admin.execute(reload)
        finally:
            admin.execute(f"ALTER SYSTEM RESET {name}")
            wait_for_setting(admin, name, "on")
    assert examine(url) == []


def test_a_log_that_is_handed_over_to_no_place_is_found() -> None:
    cluster = cluster_18()
    try:
        execute(start(cluster), "ALTER SYSTEM SET archive_mode = on")
        cluster.stop()
        cluster.ensure_running()
        with closing(connect(cluster.url("postgres"))) as connection:
            [finding] = server.log(connection)
            assert finding.level == "fail"
            assert "without archive_command" in finding.found
            assert "archive_mode = off and restart the server" in str(finding.remedy)
        execute(cluster.url("postgres"), "ALTER SYSTEM SET archive_mode = off")
        cluster.stop()
        cluster.ensure_running()
        with closing(connect(cluster.url("postgres"))) as connection:
            assert [finding.level for finding in server.log(connection)] == ["ok"]
    finally:
        discard(cluster)


def test_commits_that_do_not_wait_are_found_at_every_level(url: str, examine: Examine) -> None:
    name = url.rpartition("/")[2].partition("?")[0]
    execute(url, "ALTER DATABASE {} SET synchronous_commit = off", name)
    finding = one(examine(url), "server durability")
    assert (finding["level"], finding["remedy"]) == (
        "fail",
        f"ALTER DATABASE {name} RESET synchronous_commit",
    )
    execute(url, finding["remedy"])
    execute(url, "CREATE ROLE hasty")
    try:
        execute(url, "ALTER ROLE hasty IN DATABASE {} SET synchronous_commit = off", name)
        finding = one(examine(url), "server durability")
        assert finding["level"] == "warn"
        execute(url, finding["remedy"])
        assert examine(url) == []
    finally:
        execute(url, "DROP ROLE hasty")


def test_autovacuum_that_is_off_is_found(durable: str, url: str, examine: Examine) -> None:
    with session(durable) as admin:
        admin.autocommit = True
        try:
            admin.execute("ALTER SYSTEM SET autovacuum = off")
            wait_for_setting(admin, "autovacuum", "off")
            assert one(examine(url), "server autovacuum")["level"] == "warn"
        finally:
            admin.execute("ALTER SYSTEM RESET autovacuum")
            wait_for_setting(admin, "autovacuum", "on")


def test_few_free_connections_are_found(url: str, examine: Examine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FREE_CONNECTIONS", 1000)
    assert "max_connections" in one(examine(url), "server connections")["remedy"]


def test_a_session_idle_in_a_transaction_is_named_and_its_remedy_ends_it(
    url: str, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horizon, "IDLE_SECONDS", 0)
    with session(url) as idler:
        idler.execute("CREATE TEMP TABLE mine (id integer)")  # takes a transaction id
        finding = one(examine(url), "horizon session")
        assert f"pid {idler.info.backend_pid} (postgres, a-person)" in finding["found"]
        assert "idle in transaction" in finding["found"]
        assert "prevents the removal of dead rows" in finding["found"]
        execute(url, finding["remedy"].partition(";")[0])
        assert examine(url) == []


def test_a_statement_that_runs_for_long_is_found(
    url: str, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horizon, "STATEMENT_SECONDS", 0)
    with session(url) as reader:
        reader.pgconn.send_query(b"SELECT pg_sleep(600)")
        finding = one(until(lambda: examine(url)), "horizon session")
        assert "has been active" in finding["found"]
        execute(url, finding["remedy"])


def test_a_prepared_transaction_that_was_left_over_is_found(
    url: str, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(horizon, "IDLE_SECONDS", 0)
    with session(url) as preparer:
        preparer.execute("CREATE TABLE public.mine (id integer)")
        preparer.execute("PREPARE TRANSACTION 'left over'")
    finding = one(examine(url), "horizon prepared")
    execute(url, finding["remedy"].partition(",")[0])
    assert examine(url) == []


def test_a_slot_that_is_not_read_is_found(url: str, examine: Examine) -> None:
    execute(url, "SELECT pg_create_logical_replication_slot('forgotten', 'pgoutput')")
    finding = one(examine(url), "horizon slot")
    assert "logical slot 'forgotten' has no reader" in finding["found"]
    execute(url, finding["remedy"].partition("or ")[2])
    assert examine(url) == []


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_database_that_cannot_hold_every_text_is_refused(
    server: str, examine: Examine, encoding: str
) -> None:
    name = f"in_{encoding}"
    options = f"ENCODING '{encoding}' LOCALE 'C' LOCALE_PROVIDER libc TEMPLATE template0"
    execute(server, f"CREATE DATABASE {{}} {options}", name)
    try:
        url = on_database(server, name)
        [finding] = [found for found in examine(url) if found["what"] == "server encoding"]
        assert encoding in finding["found"]
        assert "ENCODING 'UTF8'" in finding["remedy"]
        with pytest.raises(TrinityError, match=f"the encoding {encoding}.*; create another: CREATE DATABASE"):
            opening.upgrade(url)
        assert upgrades.schema_version(url) is None
        execute(server, finding["remedy"].replace("DATABASE name", "DATABASE {}"), f"other_{encoding}")
        execute(server, "DROP DATABASE {}", f"other_{encoding}")
    finally:
        execute(server, "DROP DATABASE {}", name)


def test_a_server_that_does_not_answer_is_a_finding(examine: Examine) -> None:
    finding = one(examine("postgresql://someone:secret@127.0.0.1:1/nowhere"), "store reached")
    assert "postgresql://someone:***@127.0.0.1:1/nowhere" in finding["found"]
    finding = one(examine("host=127.0.0.1 port=1 password='secret'"), "store reached")
    assert "postgresql://:***@127.0.0.1:1" in finding["found"]
    assert "secret" not in finding["found"]


def test_a_store_that_was_not_made_yet_is_not_made(examine: Examine, tmp_path: Path) -> None:
    assert one(examine(None), "store reached")["remedy"] == "trinity-db db init"
    assert list(tmp_path.iterdir()) == []


def test_an_embedded_store_that_is_stopped_is_started(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = embedded.cluster(new_home())
    try:
        opening.upgrade(cluster.ensure_running())
        cluster.stop()
        monkeypatch.setenv("TRINITY_DB_HOME", str(cluster.home))
        assert examine(None) == []
        assert cluster.running()
    finally:
        discard(cluster)


def test_an_account_that_may_see_little_says_so(url: str, examine: Examine) -> None:
    execute(url, "CREATE ROLE guest LOGIN")
    try:
        as_guest = url.replace("postgres@", "guest@")
        with session(url):
            assert one(examine(as_guest)[-1:], "schema version")["remedy"] == "GRANT trinity_reader TO guest"
            execute(url, "GRANT trinity_reader TO guest")
            finding = one(examine(as_guest), "server privileges")
            assert finding["level"] == "warn"
            execute(url, finding["remedy"])
            assert examine(as_guest) == []
    finally:
        execute(url, "DROP ROLE guest")


def test_packages_and_disks_are_looked_at(
    url: str, examine: Examine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(installation, "EXTRAS", {"train": ("no_such_package",)})
    assert one(examine(url), "installation train")["remedy"] == "pip install 'trinity-db[train]'"
    monkeypatch.undo()
    monkeypatch.setattr(installation, "FREE_BYTES_WANTED", 1 << 62)
    assert {finding.level for finding in installation.folder("disk", tmp_path, "HOME")} == {"warn"}
    monkeypatch.setattr(installation, "FREE_BYTES_LEAST", 1 << 62)
    assert {finding.level for finding in installation.folder("disk", tmp_path, "HOME")} == {"fail"}
    [finding] = installation.sandboxes()
    assert finding.found.startswith("code_tests runs code within landlock ")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    [finding] = installation.sandboxes()
    assert (finding.level, finding.remedy) == ("warn", "install bubblewrap (bwrap)")
    monkeypatch.undo()
    (tmp_path / "file").touch()
    [finding] = installation.folder("disk", tmp_path / "file" / "below", "HOME")
    assert (finding.level, finding.found) == ("fail", f"{tmp_path / 'file'} cannot be written")
    [finding] = installation.folder("disk", Path("/proc"), "HOME")
    assert (finding.level, finding.found) == ("fail", "/proc cannot be written")


def wait_for_setting(admin: psycopg.Connection[Any], name: str, value: str) -> None:
    admin.execute("SELECT pg_reload_conf()")
    until(lambda: admin.execute(f"SHOW {name}").fetchall() == [(value,)])


def until(look: Callable[[], Any]) -> Any:
    """What a look finds, as soon as it finds something."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline
    return found
