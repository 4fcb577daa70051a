"""A run whose two explorers get versions by broadcast, one of them on a machine that sees no other files.

Its trainer is killed in the middle, and started again.
"""

import re
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.acceptance.command import WITHOUT, Ended, Store, new_store, reversals

pytestmark = pytest.mark.slow

RUN, STEPS, PART = "together", 60, 10


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("together")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store


@pytest.fixture(scope="module")
def ended(store: Store) -> dict[str, Ended]:
    """How the roles of the run end. Of the trainers it is the second one."""
    store.home.mkdir(exist_ok=True)
    if subprocess.run([*WITHOUT, str(store.home), "true"], capture_output=True).returncode:
        pytest.skip("a folder is hidden by a mount in a namespace, which this login may not make")
    with socket.create_server(("127.0.0.1", 0)) as free:  # a port that the second trainer takes over
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = store.config(
        RUN,
        taskset="reverse",
        max_staleness=1,
        algorithm="grpo",
        explorer={"group_size": 8, "concurrency": 32, "max_new_tokens": 2},
        processors={"score": ["position_match"]},
        trainer={"steps": STEPS, "batch_size": 32, "learning_rate": 1e-2, "broadcast": address},
    )
    processes = {
        "elsewhere": store.start_elsewhere("explore", config),
        "explore": store.start("explore", config),
        "train": store.start("train", config),
        "process": store.start("process", config),
    }
    store.wait_for(f"SELECT max(version) >= {STEPS // 3} FROM policy_version", *processes.values())
    assert processes["train"].kill().code == -9
    processes["train"] = store.start("train", config)
    return {role: process.wait() for role, process in processes.items()}


def test_every_role_ends_with_the_run(ended: dict[str, Ended]) -> None:
    for role, one in ended.items():
        assert (role, one.code, one.error_lines) == (role, 0, [])


@pytest.mark.usefixtures("ended")
def test_the_run_learns(store: Store) -> None:
    # A step that is made again after the kill is measured again.
    found = store.rows(
        "SELECT DISTINCT ON (step) value FROM metric WHERE name = 'reward' AND role = 'train'"
        " ORDER BY step, id DESC"
    )
    values = [row["value"] for row in found]
    assert len(values) == STEPS
    assert sum(values[-PART:]) / PART > sum(values[:PART]) / PART + 0.2


def test_both_explorers_used_what_they_received(ended: dict[str, Ended], store: Store) -> None:
    for role in ("elsewhere", "explore"):
        received = set(re.findall(r"version (\d+): received", ended[role].stderr))
        assert len(received) > STEPS / 4
        if role == "elsewhere":
            assert set(re.findall(r"using policy version (\d+)", ended[role].stderr)) <= received
    assert re.search(r"broadcast to 2 explorers", ended["train"].stderr)
    staged = store.rows("SELECT staged_version FROM worker WHERE role = 'explore'")
    assert all(row["staged_version"] >= STEPS - 2 for row in staged)
    assert store.value("SELECT count(DISTINCT broadcast_at) FROM worker WHERE role = 'train'") == 1
