"""A server as users have it, and the doctor to examine it."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.complaints import Examine, Findings
from tests.support.postgres import cluster_18, discard, execute, new_database, on_database
from trinity_db.postgres import opening

TEMPLATE = "trinity_template"


@pytest.fixture(scope="module")
def durable() -> Iterator[str]:
    """The maintenance database of a server as users have it, but for slots and prepared transactions."""
    cluster = cluster_18()
    wanted = ("--set=max_prepared_transactions=5", "--set=wal_level=logical")
    binaries = replace(cluster.binaries, initdb_options=(*cluster.binaries.initdb_options, *wanted))
    cluster = replace(cluster, binaries=binaries)
    cluster.ensure_running()
    execute(cluster.url("postgres"), "CREATE DATABASE {}", TEMPLATE)
    opening.upgrade(on_database(cluster.url("postgres"), TEMPLATE))
    yield cluster.url("postgres")
    discard(cluster)


@pytest.fixture
def url(durable: str) -> Iterator[str]:
    """A store of its own, with nothing in it."""
    with new_database(durable, TEMPLATE, "wal_log") as url:
        yield url


@pytest.fixture
def examine(command_line: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Examine:
    """What the doctor complains of, at a URL or in the embedded home; its exit code has to agree."""
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path))

    def examine(url: str | None) -> Findings:
        if url is None:
            monkeypatch.delenv("TRINITY_DB_URL", raising=False)
        else:
            monkeypatch.setenv("TRINITY_DB_URL", url)
        done = command_line("doctor", "--json")
        shown: Findings = json.loads(done.stdout)
        assert done.code == int(any(finding["level"] == "fail" for finding in shown))
        return [finding for finding in shown if finding["level"] != "ok"]

    return examine
