"""The explorer with workflows of a user's own: what it writes, refuses and gives back."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.echo import Echo
from tests.support.explorers import Explorers, publish, stored
from tests.support.postgres import cluster_18, discard, start
from tests.support.rows import Scene, members
from tests.support.waiting import WAIT_SECONDS, until
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.explorer import service
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.attempt.workflow import Workflow
from trinity_db.explorer.engines.engine import Completion, EngineFailed, Request
from trinity_db.explorer.loop.evaluating import Look
from trinity_db.explorer.loop.idle_time import EmptyPlaces
from trinity_db.models.chat.prompts import PromptTooLong
from trinity_db.postgres.connection import Database, Transaction
from trinity_db.postgres.opening import upgrade
from trinity_db.schema.states import WorkerRole
from trinity_db.store import workers
from trinity_db.store.groups import Pace
from trinity_db.worker.service import POLL_SECONDS

STOP_SECONDS = 20.0  # a stop without a database: two attempts to connect, one of them the goodbye's


@pytest.fixture
def handlers() -> Iterator[None]:
    """Gives the signals back that serving took."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def rollouts(scene: Scene) -> list[tuple[Any, ...]]:
    """Member, attempt and state of every rollout, as a connection of its own sees them."""
    return stored(scene, "SELECT ordinal, attempt, state FROM trinity.rollout ORDER BY id")


async def answers(task: Mapping[str, Any], policy: Policy) -> None:
    await policy.sample([1, 2])


def test_groups_are_claimed_as_far_as_the_pace_allows_and_each_attempt_is_a_rollout(
    explorer: Explorers, scene: Scene
) -> None:
    role = explorer(answers, groups=3)
    assert role.work()
    assert [row[2] for row in rollouts(scene)] == ["finished"] * 6
    assert scene.values("SELECT state FROM trinity.rollout_group") == ["complete"] * 3
    assert not role.work()


def test_an_explorer_records_the_number_format_of_its_engine(
    explorer: Explorers, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    scene.run.config["trainer"] = {"publish_dtype": "auto"}
    engine = Echo()
    role = explorer(answers, engine)
    role.start()
    assert "set trainer.publish_dtype to its format" in caplog.text
    caplog.clear()
    engine.dtype = "bfloat16"  # type: ignore[attr-defined]
    role.start()
    scene.lose(scene.explorer)
    with scene.database.transaction() as tx:
        assert workers.engine_dtypes(tx, scene.run.id, 30) == {"bfloat16"}
    assert not caplog.text


def test_an_attempt_that_ended_is_durable_while_others_go_on(explorer: Explorers, scene: Scene) -> None:
    """No attempt waits for the slowest one of its group or of those that began with it."""
    waiting: list[Mapping[str, Any]] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        await policy.sample([1, 2])
        if not waiting:
            waiting.append(task)
            await until(lambda: len(rollouts(scene)) == 7, "the others are stored")

    assert explorer(workflow, groups=4, concurrency=4).work()
    assert len(rollouts(scene)) == 8


def test_no_more_attempts_are_under_way_than_the_configuration_says(
    explorer: Explorers, scene: Scene
) -> None:
    now, most = [0], [0]
    together = asyncio.Barrier(4)  # whole groups: five places take two groups of two

    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        now[0] += 1
        most[0] = max(most[0], now[0])
        await together.wait()
        await policy.sample([1, 2])
        now[0] -= 1

    assert explorer(workflow, groups=8, concurrency=5).work()
    assert len(rollouts(scene)) == 16
    assert most[0] == 4


def test_attempts_that_raise_are_failed_rollouts_and_the_others_go_on(
    explorer: Explorers, scene: Scene
) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        await policy.sample([1, 2])
        if policy.seed % 2:
            raise ValueError("half a pair: \ud800, a NUL: \x00")

    assert explorer(workflow, groups=8).work()
    states = [row[2] for row in rollouts(scene)]
    assert len(states) == 16
    assert set(states) == {"finished", "failed"}
    [error] = set(scene.values("SELECT error FROM trinity.rollout WHERE state = 'failed'"))
    assert error.startswith("ValueError: half a pair: ?, a NUL:  (")
    assert "test_explorer.py, line" in error
    assert scene.values("SELECT state FROM trinity.rollout_group") == ["complete"] * 8


def test_failures_in_a_row_end_the_explorer(
    explorer: Explorers, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        raise ValueError("my bug")

    monkeypatch.setattr("trinity_db.explorer.loop.writing.FAILURES_IN_A_ROW", 4)
    with pytest.raises(TrinityError, match=r"4 rollouts failed in a row, the last with: ValueError: my bug"):
        explorer(workflow).work()
    assert [row[2] for row in rollouts(scene)] == ["failed"] * 4


def test_one_bad_task_does_not_end_the_explorer_however_large_its_group_is(
    explorer: Explorers, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        raise ValueError("my bug")

    monkeypatch.setattr("trinity_db.explorer.loop.writing.FAILURES_IN_A_ROW", 2)
    monkeypatch.setattr("trinity_db.explorer.loop.writing.FAILURES_OF_A_GROUP", 1)
    role = explorer(workflow, groups=1)
    assert role.work()
    assert [row[2] for row in rollouts(scene)] == ["failed"] * 2
    role._plan = replace(role._plan, pace=Pace(max_staleness=0, per_version=2))
    with pytest.raises(TrinityError, match=r"4 rollouts failed in a row, the last with: ValueError: my bug"):
        role.work()


def test_an_engine_that_fails_ends_the_explorer_and_its_attempts_are_not_failed(
    explorer: Explorers, scene: Scene
) -> None:
    class Broken(Echo):
        async def generate(self, request: Request) -> Completion:
            if len(self.asked) == 1:
                raise EngineFailed("out of memory")
            return await super().generate(request)

    with pytest.raises(EngineFailed, match="out of memory"):
        explorer(answers, Broken()).work()
    assert [row[2] for row in rollouts(scene)] == ["finished"]


def test_an_engine_that_fails_ends_an_attempt_that_would_ask_it_for_ever(
    explorer: Explorers, scene: Scene
) -> None:
    class Broken(Echo):
        async def generate(self, request: Request) -> Completion:
            raise EngineFailed("out of memory")

    asked: list[bool] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        while len(asked) < 1000:
            asked.append(True)
            with suppress(Exception):
                await policy.sample([1, 2])

    with pytest.raises(EngineFailed, match="out of memory"):
        explorer(workflow, Broken()).work()
    assert len(asked) == 8  # of each attempt twice
    assert rollouts(scene) == []


def test_what_came_too_late_is_kept_as_refused(explorer: Explorers, scene: Scene) -> None:
    lost: list[bool] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        await policy.sample([1, 2])
        if not lost:
            lost.append(True)
            scene.lose(role.worker_id)
            other = scene.new_worker(WorkerRole.EXPLORE)
            for group in scene.claim(2, worker=other):
                scene.write(members(group), worker=other)

    role = explorer(workflow)
    assert role.work()
    ends = [(1, "refused")] * 2 + [(2, "finished")] * 2
    assert sorted(rollouts(scene)) == [(member, *end) for member in (0, 1) for end in ends]
    assert scene.rows("SELECT state, arrived FROM trinity.rollout_group") == [("complete", 2)] * 2


def test_a_stop_keeps_what_ended_and_gives_back_what_did_not(
    explorer: Explorers, scene: Scene, handlers: None
) -> None:
    begun = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        begun.append(task)
        number = len(begun)
        await policy.sample([1, 2])
        if number == 2:
            await until(lambda: len(rollouts(scene)) == 3, "the others are stored")
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    explorer(workflow).serve()
    assert [row[1:] for row in rollouts(scene)] == [(1, "finished")] * 3
    assert sorted(scene.rows("SELECT state, worker_id FROM trinity.rollout_group")) == [
        ("complete", None),
        ("open", None),
    ]


def test_a_run_that_is_finished_ends_attempts_that_would_not_end(explorer: Explorers, scene: Scene) -> None:
    """Also while all places are taken, and no group could be claimed."""
    begun = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        begun.append(task)
        await policy.sample([1, 2])
        if len(begun) == 2:
            with scene.database.transaction() as tx:
                tx.execute("UPDATE trinity.run SET state = 'finished', finished_at = now()")
            await asyncio.wait_for(asyncio.Event().wait(), 30 * POLL_SECONDS)

    began = time.monotonic()
    assert explorer(workflow, concurrency=2).work()
    assert time.monotonic() - began < 30 * POLL_SECONDS
    assert rollouts(scene) == [(0, 1, "finished")]


def test_news_make_an_explorer_without_a_free_place_ask_the_store_nothing(
    explorer: Explorers, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a run of many explorers news come with each write of each of them."""
    monkeypatch.setattr(service, "POLL_SECONDS", 600.0)
    looks: list[object] = []
    asked: list[int] = []
    heard = asyncio.Event()

    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        await policy.sample([1, 2])
        if not asked:
            asked.append(len(looks))
            for _ in range(20):
                heard.clear()
                role.wake()
                await heard.wait()
            asked.append(len(looks))

    role = explorer(workflow, groups=1, concurrency=2)
    look, refill = role._look, role._refill

    async def refilled() -> bool:
        goes_on = await refill()
        heard.set()
        return goes_on

    def counted(tx: Transaction) -> Look:
        looks.append(tx)
        return look(tx)

    monkeypatch.setattr(role, "_look", counted)
    monkeypatch.setattr(role, "_refill", refilled)
    assert role.work()
    assert asked == [1, 1]
    assert len(looks) > 1, "it looks again once there is room"


def test_an_explorer_at_work_has_two_connections(explorer: Explorers, scene: Scene, handlers: None) -> None:
    """One to beat and to hear news, one of the thread that speaks to the store."""
    sessions = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND application_name LIKE 'trinity-db worker%'"
    )
    found: list[int] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        await policy.sample([1, 2])
        if not found:
            await until(lambda: any(one.name == "pulse" for one in threading.enumerate()), "it beats")
            await until(lambda: stored(scene, sessions) == [(2,)], "there are two")
            found.append(2)
            os.kill(os.getpid(), signal.SIGTERM)

    explorer(workflow, groups=1).serve()
    assert found == [2]


def test_a_stop_ends_also_while_there_is_no_database(
    explorer: Explorers, handlers: None, starting_model: Path
) -> None:
    cluster = cluster_18()
    try:
        url = start(cluster)
        upgrade(url)
        with closing(Database(url)) as database:
            scene = Scene.open(database)
            publish(scene, 0, starting_model)
            begun, stopped_at = [], []

            async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
                begun.append(task)
                number = len(begun)
                await policy.sample([1, 2])
                if number == 2:
                    await until(lambda: len(rollouts(scene)) == 1, "the first one is stored")
                    await asyncio.to_thread(cluster.stop)
                    stopped_at.append(time.monotonic())
                    os.kill(os.getpid(), signal.SIGTERM)

            explorer(workflow, groups=1, scene=scene).serve()
            assert time.monotonic() - stopped_at[0] < STOP_SECONDS
            cluster.ensure_running()
            assert rollouts(scene) == [(0, 1, "finished")]
    finally:
        discard(cluster)


def test_text_that_postgres_cannot_hold_is_kept_without_what_it_cannot(
    explorer: Explorers, scene: Scene
) -> None:
    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        await policy.sample([1, 0, 2], prompt="1\x002")

    assert explorer(workflow).work()
    assert set(scene.rows("SELECT prompt, response FROM trinity.experience_text")) == {("12", "21")}


def test_files_that_are_not_those_that_were_published_are_not_loaded(
    explorer: Explorers, scene: Scene, starting_model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    role = explorer(answers, groups=1)
    assert role.work()
    role._plan = replace(role._plan, pace=Pace(max_staleness=0, per_version=2))
    elsewhere = tmp_path / "elsewhere"
    publish(scene, 1, starting_model)
    elsewhere.mkdir()
    (elsewhere / "model.safetensors").write_bytes(b"other weights")
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.policy_version SET checkpoint = %s WHERE version = 1", [str(elsewhere)])
    for _ in range(3):
        assert not role.work()
    assert caplog.text.count("version 1 is unusable") == 1
    assert role._attempts.engine.version == 0
    publish(scene, 1, elsewhere)
    assert role.work()
    assert role._attempts.engine.version == 1


def test_another_checkpoint_under_the_number_that_is_loaded_is_loaded(
    explorer: Explorers, scene: Scene, starting_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[bytes] = []

    async def load(engine: Echo, path: Path, version: int) -> None:
        loaded.append((path / "model.safetensors").read_bytes())

    monkeypatch.setattr(Echo, "load", load)
    role = explorer(answers, groups=1)
    assert role.work()
    (starting_model / "model.safetensors").write_bytes(b"set back")
    publish(scene, 0, starting_model)
    for groups in (2, 3):
        role._plan = replace(role._plan, pace=Pace(max_staleness=0, per_version=groups))
        assert role.work()
    assert loaded == [b"weights", b"set back"]


async def awaits_what_it_cancelled(task: Mapping[str, Any], policy: Policy) -> None:
    tool = asyncio.create_task(asyncio.sleep(60))
    tool.cancel()
    await tool


async def cancels_itself(task: Mapping[str, Any], policy: Policy) -> None:
    attempt = asyncio.current_task()
    assert attempt is not None
    attempt.cancel()
    await asyncio.sleep(60)


async def exits(task: Mapping[str, Any], policy: Policy) -> None:
    raise SystemExit(0)


async def raises_what_cannot_be_shown(task: Mapping[str, Any], policy: Policy) -> None:
    class Unclear(Exception):
        def __str__(self) -> str:
            return self.args[0]  # type: ignore[no-any-return]

    raise Unclear(5)


async def raises_several(task: Mapping[str, Any], policy: Policy) -> None:
    async with asyncio.TaskGroup() as calls:
        calls.create_task(raises_what_cannot_be_shown(task, policy))


async def ignores_the_time_limit(task: Mapping[str, Any], policy: Policy) -> None:
    await policy.sample([1, 2])
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(60)


class NeverEnds:
    """A workflow that catches its cancellation for good."""

    def __init__(self) -> None:
        self.tries = 0
        """How often it asked the policy."""
        self.attempts: set[asyncio.Task[Any] | None] = set()
        """Held, as the event loop would let what waits for ever be collected."""

    async def __call__(self, task: Mapping[str, Any], policy: Policy) -> None:
        self.attempts.add(asyncio.current_task())
        while True:
            with suppress(asyncio.CancelledError):
                self.tries += 1
                await policy.sample([1, 2])
                await asyncio.Event().wait()


async def cancel_all() -> None:
    for one in asyncio.all_tasks() - {asyncio.current_task()}:
        one.cancel()


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("attempt.attempts", "service"):
        monkeypatch.setattr(f"trinity_db.explorer.{module}.GRACE_SECONDS", 0.05)


def test_an_attempt_that_goes_on_after_its_time_fails_and_is_left_alone(
    short_grace: None, explorer: Explorers, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    engine, workflow = Echo(), NeverEnds()
    role = explorer(workflow, engine, attempt_seconds=0.05)
    assert role.work()
    assert set(scene.values("SELECT error FROM trinity.rollout")) == {"took longer than 0.05 s"}
    assert caplog.text.count("after its cancellation and is abandoned") == 4
    asked, tries = len(engine.asked), workflow.tries
    role._runner.run(cancel_all())
    role._runner.run(until(lambda: workflow.tries == tries + 4, "each asks the policy once more"))
    assert len(engine.asked) == asked, "what is left alone asks the engine for nothing more"


def test_an_attempt_that_goes_on_after_a_stop_does_not_hold_the_stop_up(
    short_grace: None, explorer: Explorers, scene: Scene, handlers: None
) -> None:
    begun = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        begun.append(task)
        if len(begun) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        await NeverEnds()(task, policy)

    explorer(workflow).serve()
    assert rollouts(scene) == []
    assert scene.values("SELECT worker_id FROM trinity.rollout_group") == [None] * 2


def test_spare_attempts_are_cancelled_when_their_group_is_complete_and_are_no_failures(
    explorer: Explorers, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trinity_db.explorer.loop.writing.FAILURES_IN_A_ROW", 1)
    begun: list[Mapping[str, Any]] = []
    cleaned_up: list[Mapping[str, Any]] = []

    async def workflow(task: Mapping[str, Any], policy: Policy) -> None:
        begun.append(task)
        if begun.count(task) <= 2:  # the slowest come first here
            try:
                await asyncio.Event().wait()
            finally:
                cleaned_up.append(task)
        await policy.sample([1, 2])

    assert explorer(workflow, groups=3, spare=2).work()
    assert scene.rows(
        "SELECT ordinal, state::text, finish_reason, error FROM trinity.rollout ORDER BY group_id, ordinal"
    ) == 3 * [
        (0, "refused", "spare", None),
        (1, "refused", "spare", None),
        (2, "finished", "stop", None),
        (3, "finished", "stop", None),
    ]
    assert (
        scene.rows("SELECT state::text, arrived, failed FROM trinity.rollout_group")
        == [("complete", 2, 0)] * 3
    )
    assert len(cleaned_up) == 6


async def gives_a_state_that_is_no_text(task: Mapping[str, Any], policy: Policy) -> None:
    await policy.sample([1, 2])
    policy.step(state=5)  # type: ignore[arg-type]


async def returns_a_reward_that_is_no_number(task: Mapping[str, Any], policy: Policy) -> Any:
    await policy.sample([1, 2])
    return {"right": [1.0]}


async def returns_nan(task: Mapping[str, Any], policy: Policy) -> float:
    await policy.sample([1, 2])
    return float("nan")


async def fills_the_context(task: Mapping[str, Any], policy: Policy) -> None:
    token_ids = [1]
    while True:
        token_ids += (await policy.sample(token_ids)).token_ids


@pytest.mark.parametrize(
    ("workflow", "error"),
    [
        (returns_a_reward_that_is_no_number, "TypeError: The reward 'right' of a step is list, not a"),
        (returns_nan, "ValueError: The reward of a step is nan, not a number"),
        (fills_the_context, "A prompt of 8 tokens does not fit a context of 5."),
        (awaits_what_it_cancelled, "CancelledError: ("),
        (cancels_itself, "CancelledError: ("),
        (exits, "SystemExit: 0 ("),
        (raises_what_cannot_be_shown, "Unclear: its message cannot be shown ("),
        (raises_several, "Unclear: its message cannot be shown ("),
        (ignores_the_time_limit, "took longer than 0.05 s"),
        (gives_a_state_that_is_no_text, "TypeError: The state of a step is int, not text. ("),
    ],
)
def test_whatever_an_attempt_raises_is_a_failed_rollout(
    explorer: Explorers, scene: Scene, workflow: Workflow, error: str
) -> None:
    assert explorer(workflow, attempt_seconds=0.05).work()
    assert [row[2] for row in rollouts(scene)] == ["failed"] * 4
    assert scene.values("SELECT state FROM trinity.rollout_group") == ["complete"] * 2
    [written] = set(scene.values("SELECT error FROM trinity.rollout"))
    assert written.startswith(error)


def test_a_response_without_an_end_and_a_full_context_that_is_caught_are_no_failures(
    explorer: Explorers, scene: Scene
) -> None:
    class Endless(Echo):
        async def generate(self, request: Request) -> Completion:
            return replace(await super().generate(request), finish_reason="length")

    async def workflow(task: Mapping[str, Any], policy: Policy) -> float:
        with suppress(PromptTooLong):
            await fills_the_context(task, policy)
        return 0.5

    assert explorer(workflow, Endless()).work()
    assert [row[2] for row in rollouts(scene)] == ["finished"] * 4
    ends = "SELECT DISTINCT m.finish_reason, e.reward, e.prompt_length + e.response_length"
    ends += " FROM trinity.rollout m JOIN trinity.experience e ON e.rollout_id = m.id"
    assert scene.rows(ends) == [("length", 0.5, 8)]


def test_the_version_of_before_is_loaded_again_when_the_next_one_could_not_be(
    explorer: Explorers, scene: Scene, starting_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else attempts would wait for an engine that has given up the weights of before."""
    loaded: list[int] = []

    async def load(engine: Echo, path: Path, version: int) -> None:
        loaded.append(version)
        if version == 1:
            raise ConfigError("there is no tokenizer")

    monkeypatch.setattr(Echo, "load", load)
    role = explorer(answers, groups=1)
    assert role.work()
    publish(scene, 1, starting_model)
    role._plan = replace(role._plan, pace=Pace(max_staleness=0, per_version=2))
    assert not role.work()
    with scene.database.transaction() as tx:
        tx.execute("DELETE FROM trinity.policy_version WHERE version = 1")
    assert role.work()
    assert loaded == [0, 1, 0]


def test_what_ends_while_weights_load_is_written_meanwhile(
    explorer: Explorers, scene: Scene, starting_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = asyncio.Event()

    async def load(engine: Echo, path: Path, version: int) -> None:
        if version == 1:
            loads.set()
            await until(lambda: [row[2] for row in rollouts(scene)] == ["finished"] * 2, "both are written")
        engine.version = version

    async def outlasts_the_start(task: Mapping[str, Any], policy: Policy) -> None:
        if not loads.is_set():
            publish(scene, 1, starting_model)
            role._plan = replace(role._plan, pace=Pace(max_staleness=0, per_version=2))
            role.wake()
            await loads.wait()
        await policy.sample([1, 2])

    monkeypatch.setattr(Echo, "load", load)
    role = explorer(outlasts_the_start, groups=1)
    assert role.work()
    assert role._attempts.engine.version == 1
    assert [row[2] for row in rollouts(scene)] == ["finished"] * 4


def test_news_that_arrive_while_nothing_can_be_claimed_yet_are_not_lost(
    explorer: Explorers, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trainer may make room between the moment a claim has counted and the moment it is answered."""
    claimed: list[int] = []
    waiting: list[bool] = []

    async def goes_on(task: Mapping[str, Any], policy: Policy) -> None:
        await policy.sample([1, 2])
        if not waiting:
            waiting.append(True)
            await until(lambda: len(claimed) >= 3, "groups were asked for again")

    role = explorer(goes_on, groups=1)
    claim = role._claim

    async def and_then_room(version: int, limit: int) -> list[Any]:
        groups = await claim(version, limit)
        claimed.append(len(groups))
        if len(claimed) == 2:
            role._plan = replace(role._plan, pace=Pace(max_staleness=0, per_version=2))
            role.wake()
        return groups

    monkeypatch.setattr(role, "_claim", and_then_room)
    monkeypatch.setattr(service, "POLL_SECONDS", 2 * WAIT_SECONDS)  # so only what wakes it is in time
    began = time.monotonic()
    assert role.work()
    assert claimed[:3] == [1, 0, 1]
    assert time.monotonic() - began < WAIT_SECONDS


def test_an_explorer_measures_how_long_its_places_are_empty_because_no_group_may_start(
    explorer: Explorers, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(service, "EmptyPlaces", partial(EmptyPlaces, clock=lambda: clock[0]))

    async def slowly(task: Mapping[str, Any], policy: Policy) -> None:
        await policy.sample([1, 2])
        clock[0] = 8.0

    role = explorer(slowly, groups=1, concurrency=8)
    assert role.work()
    measured = dict(scene.rows("SELECT name, value FROM trinity.metric"))
    # Six of eight places are empty while the two attempts go on; as many or more where one is seen to end.
    assert 6.0 <= measured["explore/wait_for_training"] <= 8.0
    assert measured["explore/time"] == 8.0
