"""A run that learns with the engine `vllm`, whose explorer and whose server are killed meanwhile."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.acceptance.command import Ended, Process, Store, new_store, reversals
from tests.others.vllm.references import References
from tests.support.processes import is_alive
from tests.support.waiting import wait_until
from trinity_db.arrays import codec
from trinity_db.explorer.engines.engine import Completion

pytestmark = pytest.mark.timeout(900)  # a server starts in half a minute, on a busy machine in two
STEPS = 60
SECONDS = 400.0
RUN: dict[str, Any] = {
    "model": {
        # Heads of 32.
        "scratch": {"alphabet": "01234=", "hidden_size": 64, "layers": 1, "heads": 2, "context": 16},
        "prompt_template": "{prompt}=",
    },
    "taskset": "reverse",
    "max_staleness": 1,
    "algorithm": "grpo",
    "processors": {"score": ["position_match"]},
    "trainer": {"steps": STEPS, "batch_size": 16, "learning_rate": 3e-3, "keep_checkpoints": STEPS + 1},
}
PROGRESS = "SELECT count(*) > %(steps)s FROM batch WHERE state = 'committed'"
REWARDS = "SELECT value FROM metric WHERE name = 'reward' ORDER BY step"

TWICE = "SELECT count(*) - count(DISTINCT (group_id, ordinal)) FROM rollout WHERE state <> 'refused'"
GROUPS = """
SELECT count(*) AS batches, min(groups) AS least, max(groups) AS most FROM (
    SELECT count(DISTINCT e.group_id) AS groups FROM batch b JOIN batch_item i ON i.batch_id = b.id
    JOIN experience e ON e.id = i.experience_id WHERE b.state = 'committed' GROUP BY b.id
) AS batch
"""


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with new_store(server, template, tmp_path_factory.mktemp("run")) as store:
        store.import_rows("reverse", "tasks", reversals(2))
        yield store


@pytest.fixture(scope="module")
def ended(store: Store, python: Path) -> Ended:
    """The run, at its end. Its explorer was killed once, and later the server of the next one."""
    engine = {"name": "vllm", "python": str(python), "max_sequences": 64}
    explorer = {"group_size": 8, "concurrency": 64, "max_new_tokens": 3, "temperature": 0.9, "engine": engine}
    run = store.start("run", store.config("learns", **RUN, explorer=explorer))
    groups = []
    for steps, kills_server in ((10, False), (30, True)):
        until(store, run, steps)
        explorer_pid, (guardian, *servers) = explorer_of(run)
        groups += [guardian, *servers]
        os.kill(servers[0] if kills_server else explorer_pid, signal.SIGKILL)
    ended = run.wait(SECONDS)
    groups += [guardian, *servers]
    assert not any(map(is_alive, groups)), "no process of a server is left"
    return ended


def until(store: Store, run: Process, steps: int) -> None:
    def done() -> bool:
        assert run.running, run.wait()
        return bool(store.value(PROGRESS, steps=steps))

    for _ in range(4):  # WAIT_SECONDS each: a server starts in the middle
        try:
            return wait_until(done, f"{steps} steps")
        except AssertionError:
            assert run.running
    raise AssertionError(f"not {steps} steps")


def explorer_of(run: Process) -> tuple[int, list[int]]:
    """The explorer of a run, and the processes of its server, the guardian first."""
    (explorer,) = (pid for pid in children(run.pid) if "explore" in command(pid))
    found = [pid for pid in children(explorer) if any(word.endswith("guardian.py") for word in command(pid))]
    for parent in found:
        found += children(parent)
    return explorer, found


def children(parent: int) -> list[int]:
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if is_alive(pid) and parent_of(pid) == parent]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def command(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cmdline").read_text().split("\0")


def test_it_learns(store: Store, ended: Ended) -> None:
    assert ended.code == 0, ended.stderr
    rewards = [row["value"] for row in store.rows(REWARDS)]
    assert len(rewards) == STEPS
    assert np.mean(rewards[-10:]) > np.mean(rewards[:10]) + 0.25, rewards


def test_it_said_what_was_started_again(store: Store, ended: Ended) -> None:
    assert "explore ended with code -9, restarting it" in ended.stderr
    # Either a request or a load was the first to notice.
    assert re.search("vLLM has exited|restarting vLLM", store.log("learns", "explore"))


def test_nothing_is_lost_and_nothing_is_there_twice(store: Store, ended: Ended) -> None:
    assert store.value("SELECT count(*) FROM rollout WHERE error IS NOT NULL") == 0
    assert store.value(TWICE) == 0
    assert store.value("SELECT max(use_count) FROM experience") == 1
    assert store.rows(GROUPS) == [{"batches": STEPS, "least": 16, "most": 16}]


def test_each_recorded_log_probability_is_that_of_its_version(store: Store, ended: Ended) -> None:
    folders = store.rows("SELECT version, checkpoint FROM policy_version WHERE checkpoint IS NOT NULL")
    references = References({row["version"]: Path(row["checkpoint"]) for row in folders})
    rows = store.rows("SELECT codec, data, num_tokens FROM payload")
    assert len(rows) > STEPS * 16 * 8 / 2
    worst, versions = 0.0, set()
    for row in rows[:: len(rows) // 1500]:
        payload = codec.decode(row["codec"], row["data"], row["num_tokens"])
        assert payload.logprobs is not None
        assert payload.versions is not None
        prompt = payload.token_ids[~payload.action_mask].tolist()
        sampled = payload.token_ids[payload.action_mask].tolist()
        completion = Completion(sampled, payload.logprobs.tolist(), payload.versions.tolist(), "stop")
        worst = max(worst, references.worst(prompt, completion, temperature=0.9))
        versions |= set(completion.versions)
    assert worst < 1e-4
    assert len(versions) > STEPS / 2
