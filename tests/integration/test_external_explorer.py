"""`store.explorer` in this process: what a program claims and writes, and which errors it gets."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trinity_db
from tests.support.explorers import publish
from tests.support.postgres import execute
from tests.support.rows import Scene
from tests.support.waiting import wait_until
from trinity_db import Rollout
from trinity_db.cli.evaluate import begin
from trinity_db.errors import ConfigError, DatabaseUnavailable, LeaseLost, StoreUpgraded, TrinityError
from trinity_db.explorer.external import ExternalExplorer
from trinity_db.explorer.http.listener import EndpointAddress
from trinity_db.explorer.http.offers import Offers
from trinity_db.run import joining
from trinity_db.run.configuration import RunConfig
from trinity_db.run.explore import run_explorer
from trinity_db.schema.states import WorkerRole
from trinity_db.store import groups, stopping, workers
from trinity_db.worker.service import LEASE_SECONDS

CONFIG: dict[str, Any] = {
    "name": "sums",
    "model": {"scratch": {"hidden_size": 8, "layers": 1, "heads": 1, "context": 64}},
    "taskset": "tasks",
    "algorithm": "external",
    "max_staleness": 1,
    "explorer": {"workflow": "external", "group_size": 2, "tasks": "sequential"},
    "trainer": {"steps": 4, "batch_size": 1},
}
GROUPS = """
SELECT g.state::text, g.attempt, g.worker_id IS NOT NULL, g.arrived, g.failed FROM trinity.rollout_group g
WHERE g.run_id = %s ORDER BY g.id
"""
ROLLOUTS = "SELECT state::text, finish_reason, error FROM trinity.rollout WHERE run_id = %s ORDER BY id"
READY = "SELECT count(*) FROM trinity.rollout_group WHERE run_id = %s AND state = 'ready'"


@pytest.fixture
def run(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A run that a program explores and trains, at version 0."""
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    database, run = joining.open_run(RunConfig.model_validate(CONFIG))
    database.close()
    made = replace(scene, run=run, explorer=0, trainer=0)
    made = replace(made, processor=made.new_worker(WorkerRole.PROCESS))
    made.publish(0, step=0)
    return made


@pytest.fixture
def store(scene: Scene) -> Iterator[trinity_db.Store]:
    with trinity_db.connect(scene.database.url, read_only=False) as store:
        yield store


def rollout(reward: float | dict[str, float] | None = 1.0, **different: Any) -> Rollout:
    """Two tokens of a prompt, then two sampled ones."""
    values = {
        "token_ids": [5, 6, 7, 8],
        "action_mask": [False, False, True, True],
        "logprobs": [-0.5, -1.5],
        "version": 0,
        "prompt": "task",
        "response": "1.0",
    }
    return Rollout(**{**values, "reward": reward, **different})


def claimed(explorer: trinity_db.Explorer) -> trinity_db.Group:
    [group] = explorer.claim(wait=0)
    return group


def test_a_step_reads_what_a_program_has_written(run: Scene, store: trinity_db.Store) -> None:
    with store.explorer("sums") as explorer:
        first, second = explorer.claim(8, wait=0)
        assert explorer.claim(wait=0) == [], "two versions ahead of the trainer"
        assert (first.task, first.size, first.version) == ({"prompt": "task 0", "answer": "0"}, 2, 0)
        assert second.task["prompt"] == "task 1"
        sampled = {"token_ids": np.arange(5), "action_mask": np.arange(5) % 2 == 1, "prompt": "a\0b"}
        first.write([rollout(2.0, **sampled, version=[0, 0]), rollout({"right": 1.0, "short": 0.5})])
        second.write([rollout(), ValueError("no answer")])
        run.process()
    assert run.rows(GROUPS, run.run.id) == [("ready", 1, False, 2, 0), ("dropped", 1, False, 1, 1)]
    errors = [error for state, _, error in run.rows(ROLLOUTS, run.run.id) if state == "failed"]
    assert errors == ["ValueError: no answer"]
    best, other = (  # the score adds 1 to the program's rewards
        store.run("sums")
        .experiences(state="ready", arrays=True)
        .select("prompt", "response", "reward")
        .to_list()
    )
    assert (best["prompt"], best["response"], best["reward"], other["reward"]) == ("ab", "1.0", 3.0, 2.5)
    assert (best["token_ids"], best["logprobs"]) == ([0, 1, 2, 3, 4], [-0.5, -1.5])
    assert (best["action_mask"], best["versions"]) == ([False, True, False, True, False], [0, 0])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"token_ids": [5, 6, 7]}, r"token_ids has the shape \(3,\) and action_mask \(4,\)"),
        ({"token_ids": [5, 6, 7, -1]}, "token_ids has an entry below 0"),
        ({"token_ids": [5, 6, 7, 0.5]}, r"token_ids has entries that are not whole numbers \(float64\)"),
        ({"action_mask": [0, 0, 2, 1]}, "action_mask has other entries than true and false"),
        ({"action_mask": [False] * 4}, "action_mask marks no sampled token"),
        ({"logprobs": [-0.5]}, r"logprobs has the shape \(1,\), and action_mask marks 2 sampled tokens"),
        ({"logprobs": [-0.5, float("nan")]}, r"logprobs\[1\] is nan, not a finite number"),
        ({"logprobs": [-1e39, -0.5]}, r"logprobs\[0\] is -inf, not a finite number"),
        ({"logprobs": ["a", "b"]}, "could not convert string to float"),
        ({"version": [0]}, r"version has the shape \(1,\); pass one, or one for each sampled token"),
        ({"version": 7}, "The run has no version 7; its newest is 0"),
        ({"reward": None}, "it has no reward, and no step under processors.score gives one"),
        ({"reward": float("inf")}, "The reward of a step is inf, not a number up to"),
        ({"finish_reason": "eos"}, "finish_reason is 'eos', not stop or length"),
        ({"prompt": None}, "The prompt of a step is NoneType, not text"),
        ({"response": 5}, "The response of a step is int, not text"),
    ],
)
def test_a_rollout_that_is_wrong_is_refused_with_its_whole_group(
    run: Scene, store: trinity_db.Store, wrong: dict[str, Any], message: str
) -> None:
    with store.explorer("sums") as explorer:
        group = claimed(explorer)
        with pytest.raises(ConfigError, match=message) as error:
            group.write([rollout(), rollout(**wrong)])
        assert "\n" not in str(error.value)
        assert run.rows(ROLLOUTS, run.run.id) == []
        group.write([rollout(), rollout()])


def test_a_group_is_written_whole_and_once(run: Scene, store: trinity_db.Store) -> None:
    with store.explorer("sums") as explorer:
        group = claimed(explorer)
        with pytest.raises(ConfigError, match="has 2 rollouts, and 1 were passed: write all at once"):
            group.write([rollout()])
        group.write([rollout(), rollout()])
        with pytest.raises(TrinityError, match="was written or given back before: claim another one"):
            group.write([rollout(), rollout()])
        group.give_back()
        other = claimed(explorer)
        other.give_back()
        again = claimed(explorer)
        assert again.id == other.id
        with pytest.raises(ConfigError, match="claim at least one group"):
            explorer.claim(0)
        claimed_before = run.rows(GROUPS, run.run.id)[-1]
    assert claimed_before == ("open", 2, True, 0, 0)
    assert run.rows(GROUPS, run.run.id) == [("complete", 1, False, 2, 0), ("open", 2, False, 0, 0)]


def test_a_version_that_is_too_old_is_sampled_again(run: Scene, store: trinity_db.Store) -> None:
    trainer = run.new_worker(WorkerRole.TRAIN)
    with store.explorer("sums") as explorer:
        first, second = explorer.claim(2, wait=0)
        for version in (1, 2):
            first.write([rollout(), rollout()])
            run.process()
            run.commit(run.draw(version, 1, worker=trainer), worker=trainer)
            run.publish(version, step=version, worker=trainer)
            first = claimed(explorer)
            assert first.version == version
        old = "Version 0 is 2 versions behind the newest, 2, and the run's max_staleness is 1. Sample again"
        with pytest.raises(trinity_db.TooStale, match=old):
            second.write([rollout(version=2), rollout(version=[0, 2])])
        second.write([rollout(version=2), rollout(version=[1, 2])])


def test_a_repeated_write_after_a_lost_reply_is_not_refused(
    run: Scene, store: trinity_db.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first try has committed, and its reply is lost."""
    write, tries = ExternalExplorer._write, []

    def lose_first_reply(self: ExternalExplorer, rollouts: Any) -> groups.Unwanted:
        unwanted = write(self, rollouts)
        tries.append(unwanted)
        if len(tries) == 1:
            raise DatabaseUnavailable("the reply is lost")
        return unwanted

    monkeypatch.setattr(ExternalExplorer, "_write", lose_first_reply)
    with store.explorer("sums") as explorer:
        claimed(explorer).write([rollout(), rollout()])
    assert tries == [groups.Unwanted(0, 0, 0)] * 2
    assert run.rows(GROUPS, run.run.id) == [("complete", 1, False, 2, 0)]


def test_groups_of_a_claim_whose_reply_is_lost_are_claimed_again(
    run: Scene, store: trinity_db.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = groups.claim

    def lose_reply(tx: Any, *arguments: Any) -> list[groups.ClaimedGroup]:
        with run.database.transaction() as other:
            claim(other, *arguments)
        monkeypatch.setattr(groups, "claim", claim)
        raise DatabaseUnavailable("the reply is lost")

    with store.explorer("sums") as explorer:
        held = claimed(explorer)
        monkeypatch.setattr(groups, "claim", lose_reply)
        again = claimed(explorer)
        assert run.rows(GROUPS, run.run.id) == [("open", 1, True, 0, 0), ("open", 2, True, 0, 0)]
        held.write([rollout(), rollout()])
        again.write([rollout(), rollout()])


def test_an_explorer_that_was_replaced_writes_nothing_that_counts(
    run: Scene, store: trinity_db.Store
) -> None:
    with suppress(LeaseLost), store.explorer("sums") as explorer:
        group, _ = explorer.claim(2)
        execute(run.database.url, "UPDATE trinity.worker SET stopped_at = now() WHERE role = 'explore'")
        with store.explorer("sums") as other:
            [taken] = other.claim(wait=60)
            assert taken.id == group.id, "a heartbeat has released it"
            with pytest.raises(LeaseLost, match=r"stored as late.* enter it again"):
                group.write([rollout(), rollout()])
            taken.write([rollout(), rollout()])
    states = [(state, reason) for state, reason, _ in run.rows(ROLLOUTS, run.run.id)]
    assert states == [("refused", "stop")] * 2 + [("finished", "stop")] * 2
    run.process()
    assert run.value(READY, run.run.id) == 1


def _hold_groups(url: str, claims: Any) -> None:
    """A program that claims all groups that it may, and is killed."""
    store = trinity_db.connect(url, read_only=False)
    explorer = store.explorer("sums").__enter__()
    claims.put([group.id for group in explorer.claim(8)])
    threading.Event().wait()


def test_the_groups_of_a_program_that_is_killed_are_attempted_again(
    run: Scene, store: trinity_db.Store
) -> None:
    spawn = multiprocessing.get_context("spawn")
    claims = spawn.Queue()
    program = spawn.Process(target=_hold_groups, args=(run.database.url, claims), daemon=True)
    program.start()
    held = claims.get(timeout=120)
    assert program.pid is not None
    os.kill(program.pid, signal.SIGKILL)
    program.join()
    with store.explorer("sums") as explorer:
        for number in held:
            [group] = explorer.claim(wait=60)
            assert group.id == number
            group.write([rollout(), rollout()])
    assert run.rows(GROUPS, run.run.id) == [("complete", 2, False, 2, 0)] * 2


def test_a_claim_ends_with_the_run_a_stop_or_an_upgrade(run: Scene, store: trinity_db.Store) -> None:
    explorer = store.explorer("sums").__enter__()
    group = claimed(explorer)
    explorer._inner.make_room(StoreUpgraded("the store is being upgraded"))
    assert explorer.claim() == []
    group.write([rollout(), rollout()])
    with pytest.raises(StoreUpgraded):
        explorer.__exit__(None, None, None)
    with store.explorer("sums") as explorer:
        with run.database.transaction() as tx:
            stopping.ask(tx, run.run, LEASE_SECONDS)
        wait_until(lambda: explorer._inner.stopping, "the heartbeat reads that the run is to stop")
        assert explorer.claim() == []
    execute(
        run.database.url, "UPDATE trinity.run SET state = 'finished', finished_at = now() WHERE name = 'sums'"
    )
    with store.explorer("sums") as explorer:
        assert explorer.claim() == []
    with run.database.transaction() as tx:
        assert [worker.role for worker in workers.running(tx, run.run.id, LEASE_SECONDS)] == ["process"]


def test_a_program_loads_the_files_of_its_groups_version(
    run: Scene, store: trinity_db.Store, tmp_path: Path
) -> None:
    with run.database.transaction() as tx:
        tx.execute("DELETE FROM trinity.policy_version WHERE run_id = %s", [run.run.id])
    folder = tmp_path / "large disk" / "version-0"
    with store.explorer("sums", checkpoints=folder.parent) as explorer:
        assert explorer.claim(wait=0) == [], "the run has no version"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"weights")
        publish(run, 0, folder)
        group = claimed(explorer)
        assert group.model_folder == folder
        group.give_back()
    (folder / "model.safetensors").write_bytes(b"damage")
    with store.explorer("sums", checkpoints=folder.parent) as explorer:
        group = claimed(explorer)
        with pytest.raises(ConfigError, match="its files are not those that were published"):
            _ = group.model_folder
    with store.explorer("sums") as explorer:
        group = claimed(explorer)
        with pytest.raises(ConfigError, match="A folder is loaded only if"):
            _ = group.model_folder


def test_a_run_that_our_explorers_explore_is_refused(
    scene: Scene, run: Scene, store: trinity_db.Store
) -> None:
    with pytest.raises(ConfigError, match=r"'run' is no run with explorer\.workflow: external"):
        store.explorer("run").__enter__()
    with pytest.raises(TrinityError, match="did you mean 'sums'"):
        store.explorer("sum").__enter__()
    with pytest.raises(TrinityError, match=r"use `with store\.explorer\(run\) as explorer`"):
        store.explorer("sums").claim()
    with (
        trinity_db.connect(scene.database.url) as reader,
        pytest.raises(TrinityError, match="read_only=False"),
    ):
        reader.explorer("sums")
    for address in (None, EndpointAddress(offers=Offers(None, needs_reward=True))):
        with pytest.raises(ConfigError, match="a program of yours explores"):
            run_explorer(RunConfig.model_validate(CONFIG | {"name": "others"}), address=address)
    with pytest.raises(ConfigError, match="only explorers evaluate"):
        begin(run.database, run.run, RunConfig.model_validate(CONFIG), ["tasks"], None, {})
