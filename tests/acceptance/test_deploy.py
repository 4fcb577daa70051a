"""What `deploy/` says: as processes on a server that asks for TLS and a password, and to schedulers."""

import os
import re
import shutil
import signal
import socket
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener

import kubernetes_validate
import psycopg
import pytest
import yaml

from tests.acceptance.command import COMMAND, Process, Store, reversals, reversing
from tests.support.postgres import cluster_15, discard, start
from tests.support.waiting import wait_until
from trinity_db.postgres.embedded.accounts import server_account

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
ROLE = DEPLOY / "role.sh"
READER = f"page_{os.getpid()}"
PASSWORD = "h%nt:er @/2"  # what a URL would have to quote
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
ACCESS = """
local all all trust
hostssl all all 127.0.0.1/32 scram-sha-256
"""
RUN = "(SELECT id FROM run WHERE name = 'preempted')"
AT_WORK = f"SELECT count(*) > 10 FROM rollout WHERE run_id = {RUN}"
HELD = f"SELECT count(*) FROM rollout_group WHERE run_id = {RUN} AND worker_id IS NOT NULL"
UNSTOPPED = f"SELECT count(*) FROM worker WHERE run_id = {RUN} AND stopped_at IS NULL"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """An empty database of the login `trinity`, which reaches it by TLS and a password alone."""
    cluster = cluster_15()  # the embedded server cannot do TLS
    if cluster is None:
        pytest.skip("no PostgreSQL 15 found; install it, or name its bin folder in TRINITY_TEST_PG15_BIN")
    cluster.ensure_running()
    cluster.stop()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cluster.listen(port)
    (cluster.data / "pg_hba.conf").write_text(ACCESS)
    _make_certificate(cluster.data)
    server = start(cluster)
    try:
        with closing(psycopg.connect(server, autocommit=True)) as superuser:
            superuser.execute("ALTER SYSTEM SET ssl = on")
            superuser.execute("SELECT pg_reload_conf()")
            superuser.execute(f"CREATE ROLE trinity SUPERUSER LOGIN PASSWORD '{PASSWORD}'")
            superuser.execute("CREATE DATABASE remote OWNER trinity")
        folder = tmp_path_factory.mktemp("deploy")
        passwords = folder / "passwords"
        passwords.write_text(f"*:*:*:*:{PASSWORD.replace(':', chr(92) + ':')}\n")
        passwords.chmod(0o600)
        tls = f"sslmode=verify-full&sslrootcert={cluster.data / 'server.crt'}"
        url = f"postgresql://trinity@localhost:{port}/remote?hostaddr=127.0.0.1&{tls}&passfile={passwords}"
        store = Store(url, folder)
        prepared = store.run(*COMPOSE["services"]["prepare"]["command"])
        assert prepared.code == 0, prepared.stderr
        store.import_rows("reverse", "tasks", reversals(2))
        yield store
    finally:
        discard(cluster)


def _make_certificate(folder: Path) -> None:
    key, certificate = folder / "server.key", folder / "server.crt"
    made = ["openssl", "req", "-new", "-x509", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*made, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    key.chmod(0o600)
    if account := server_account(folder):
        os.chown(key, account.uid, account.gid)


def environment_of(store: Store, **more: str) -> dict[str, str]:
    """That of a role, whose script finds the installed command first."""
    path = os.pathsep.join([str(COMMAND.parent), os.environ["PATH"]])
    return store.environment | {"PATH": path} | more


@pytest.fixture
def job(store: Store, tmp_path: Path) -> dict[str, str]:
    """The environment of a job of Slurm, whose `scontrol` notes what it is asked."""
    command = tmp_path / "scontrol"
    command.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    command.chmod(0o755)
    environment = environment_of(store, SLURM_JOB_ID="7")
    environment["PATH"] = f"{tmp_path}{os.pathsep}{environment['PATH']}"
    return environment


def role(config: Path, folder: Path, *arguments: str, **environment: str) -> Process:
    """`role.sh` in a folder that has run.yaml, as its container or job starts it."""
    folder.mkdir(exist_ok=True)
    shutil.copy(config, folder / "run.yaml")
    return Process([ROLE, *arguments], environment, folder)


def test_each_service_of_compose_does_its_part_of_a_run(store: Store, tmp_path: Path) -> None:
    """All end well when the run is finished, so `compose up` ends."""
    services: dict[str, Any] = COMPOSE["services"]
    assert {name for name in services if "command" in services[name]} - {"store"} == {
        *("prepare", "trainer", "processor", "explorer", "page"),
    }
    given = services["trainer"]["environment"]
    assert given == {
        "TRINITY_DB_URL": "postgresql://trinity@store/trinity",
        "PGPASSWORD": "${POSTGRES_PASSWORD:?choose a password}",
    }
    # The server of the test stands elsewhere; its password comes the same way.
    environment = environment_of(store, PGPASSWORD=PASSWORD)
    environment["TRINITY_DB_URL"] = re.sub("&passfile=.*", "", store.url)
    config = store.config("composed", **reversing(steps=2, batch_size=4))
    started = [
        role(config, tmp_path / name, *services[name]["command"], **environment)
        for name in ("trainer", "processor", "explorer")
    ]
    try:
        ended = [process.wait() for process in reversed(started)]
    finally:
        for process in started:
            process.clear_away()
    assert [one.code for one in ended] == [0, 0, 0], [one.stderr for one in ended]
    assert store.value("SELECT state::text FROM run WHERE name = 'composed'") == "finished"


def test_the_page_of_compose_is_open_to_people_by_the_port_of_this_machine(
    store: Store, tmp_path: Path
) -> None:
    service = COMPOSE["services"]["page"]
    assert service["ports"] == ["127.0.0.1:8411:8411"], "other machines do not reach it"
    assert service["profiles"] == ["page"], "`compose up` ends with the run"
    assert service["environment"]["TRINITY_DB_READ_URL"] == "${PAGE_READ_URL:-}"
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        port = probe.getsockname()[1]
    command = [re.sub(r"\$\{PAGE_ADDRESS:-(.*):8411\}", rf"\1:{port}", one) for one in service["command"]]
    made = store.run("db", "roles", "--login", READER, "--as", "reader")
    assert made.code == 0, made.stderr
    environment = environment_of(store, TRINITY_DB_READ_URL=made.stdout.strip())
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "people.yaml").write_text("ann: manage\n")
    page = Process([ROLE, *command, "--port", str(port)], environment, folder)
    try:
        wait_until(
            lambda: "Press Ctrl-C to end the page." in page.output or not page.running, "the page is served"
        )
        found = re.search(rf"For ann: (http://127\.0\.0\.1:{port}/\S+)", page.output)
        assert found is not None, page.errors
        with build_opener(HTTPCookieProcessor()).open(found[1]) as answer:
            assert "You may look, label, manage." in answer.read().decode()
        page.signal(signal.SIGTERM)
        assert page.wait().code == 143
    finally:
        page.clear_away()
        with closing(psycopg.connect(store.url, autocommit=True)) as owner:
            owner.execute(f"DROP ROLE {READER}")


def test_a_job_that_is_told_to_stop_gives_its_leases_back_and_is_queued_again(
    store: Store, job: dict[str, str], tmp_path: Path
) -> None:
    config = store.config("preempted", **reversing(steps=1, batch_size=4) | {"max_staleness": None})
    explorer = role(config, tmp_path / "job", "explore", "run.yaml", "--groups", "1000000", **job)
    try:
        store.wait_for(AT_WORK, explorer)
        explorer.signal(signal.SIGTERM)
        assert explorer.wait().code == 143
    finally:
        explorer.clear_away()
    assert (tmp_path / "asked").read_text() == "requeue 7\n"
    assert store.value(HELD) == 0
    assert store.value(UNSTOPPED) == 0


def test_a_script_that_is_told_twice_waits_for_its_role(tmp_path: Path) -> None:
    """As by a node that goes down while it drains. A container whose script ends first kills the role."""
    told, command = tmp_path / "told", tmp_path / "trinity-db"
    command.write_text(
        f"#!/bin/bash\ntrap 'echo told >> {told}' TERM\necho started >> {told}\n"
        f"until [ -e {tmp_path}/done ]; do sleep 0.05; done\necho ended >> {told}\n"
    )
    command.chmod(0o755)
    script = Process([ROLE, "explore"], {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}, tmp_path)
    try:
        wait_until(lambda: told.exists() and told.read_text() == "started\n", "it is at work")
        script.signal(signal.SIGTERM)
        wait_until(lambda: told.read_text() == "started\ntold\n", "it is told")
        script.signal(signal.SIGTERM)
        wait_until(lambda: told.read_text() == "started\ntold\ntold\n", "it is told twice")
        (tmp_path / "done").touch()
        assert script.wait().code == 143
        assert told.read_text().split() == ["started", "told", "told", "ended"]
    finally:
        script.clear_away()


def test_a_job_whose_run_is_stopped_is_not_queued_again(
    store: Store, job: dict[str, str], tmp_path: Path
) -> None:
    config = store.config("asked", **reversing(steps=1, batch_size=4) | {"max_staleness": None})
    explorer = role(config, tmp_path / "job", "explore", "run.yaml", "--groups", "1000000", **job)
    try:
        store.wait_for(AT_WORK.replace("preempted", "asked"), explorer)
        stopped = store.run("stop", "asked")
        assert stopped.code == 0, stopped.stderr
        assert explorer.wait().code == 0
    finally:
        explorer.clear_away()
    assert not (tmp_path / "asked").exists()
    assert store.value(HELD.replace("preempted", "asked")) == 0


def test_a_job_with_a_wrong_configuration_is_not_queued_again(
    store: Store, job: dict[str, str], tmp_path: Path
) -> None:
    config = store.config("wrong", modle={})
    ended = role(config, tmp_path / "job", "explore", "run.yaml", **job).wait()
    assert ended.code == 1
    assert "did you mean 'model'?" in ended.stderr
    assert not (tmp_path / "asked").exists()


def test_a_server_with_another_certificate_is_refused(store: Store, tmp_path: Path) -> None:
    _make_certificate(tmp_path)
    url = re.sub("sslrootcert=[^&]*", f"sslrootcert={tmp_path}/server.crt", store.url)
    ended = store.run("status", TRINITY_DB_URL=url)
    assert (ended.code, len(ended.error_lines)) == (1, 1)
    assert "certificate verify failed" in ended.stderr
    assert PASSWORD not in ended.stderr


def test_the_manifests_are_those_of_kubernetes() -> None:
    items = yaml.safe_load((DEPLOY / "kubernetes.yaml").read_text())["items"]
    version = kubernetes_validate.latest_version()
    for item in items:
        kubernetes_validate.validate(item, version, strict=True)
    jobs = {item["metadata"]["name"]: item["spec"] for item in items if item["kind"] == "Job"}
    commands = {name: job["template"]["spec"]["containers"][0]["args"][0] for name, job in jobs.items()}
    assert commands == {
        "trinity-trainer": "train",
        "trinity-explorers": "explore",
        "trinity-processors": "process",
    }
    # One trainer, once; of the others the first that ends well says that the run is finished.
    assert [job["completions"] for job in jobs.values()] == [1, None, None]
    assert jobs["trinity-trainer"]["parallelism"] == 1


def test_the_image_is_made_of_files_and_extras_that_there_are() -> None:
    root = DEPLOY.parent
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [wanted] = re.findall(r"/source\[([a-z,-]+)\]", (DEPLOY / "Dockerfile").read_text())
    assert set(wanted.split(",")) <= extras.keys()
    assert "object-store" in wanted.split(","), "pods of several nodes fetch versions by it"
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text()
    for path in re.findall("^!(.*)$", kept, flags=re.MULTILINE):
        assert (root / path).exists(), path
    # What setuptools follows: the roles' folders are links out of the package.
    links = {link.readlink().name for link in (root / "trinity_db").iterdir() if link.is_symlink()}
    assert {f"!{name}" for name in links} <= set(kept.splitlines())
