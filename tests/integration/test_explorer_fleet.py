"""The explorer over a fleet of servers: what the store has when one of them dies."""

import asyncio
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.explorers import ANY_FOLDER, publish
from tests.support.rows import Scene
from tests.support.servers import Server, VLLMServer
from trinity_db.config.shared import PromptConfig, ScratchConfig
from trinity_db.explorer.attempt.policy import Policy
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engines.dialects import VLLM
from trinity_db.explorer.engines.endpoint import EndpointEngine
from trinity_db.explorer.service import Explorer, ExplorerSetup
from trinity_db.models import build_scratch
from trinity_db.store.groups import Pace

GROUPS, SIZE = 6, 4


class Hosted:
    """Servers in a thread of their own: the explorer's event loop is not theirs."""

    def __init__(self, number: int) -> None:
        self.servers: list[Server] = [VLLMServer() for _ in range(number)]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        for server in self.servers:
            server.token_seconds = 0.01
            self.do(server.start())

    def do(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    def close(self) -> None:
        for server in self.servers:
            self.do(server.die())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def hosted() -> Iterator[Hosted]:
    hosted = Hosted(2)
    yield hosted
    hosted.close()


def test_a_server_that_dies_costs_no_rollout_and_doubles_none(
    scene: Scene, hosted: Hosted, tmp_path: Path
) -> None:
    folder = tmp_path / "version-0"
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=16, heads=1, layers=1), 0, folder)
    publish(scene, 0, folder)
    first, second = hosted.servers
    killed = threading.Event()

    async def attempt(task: Mapping[str, Any], policy: Policy) -> None:
        await policy.sample([1, 2, 3, 4, 5, 6])
        if not killed.is_set():  # others are in flight there
            killed.set()
            await asyncio.to_thread(hosted.do, first.die())
        await policy.sample([7, 8, 9])

    engine = EndpointEngine([server.url for server in hosted.servers], VLLM())
    setup = ExplorerSetup(
        config=ExplorerConfig(group_size=SIZE, concurrency=GROUPS * SIZE),
        workflow=attempt,
        engine=engine,
        pace=Pace(max_staleness=0, per_version=GROUPS),
        selection=scene.selection,
        prompts=PromptConfig(prompt_template="{prompt}"),
        places=ANY_FOLDER,
    )
    explorer = Explorer(scene.database, scene.run, setup)
    explorer.worker_id = scene.explorer
    try:
        assert explorer.work()
    finally:
        explorer.release()
        engine.close()
    assert scene.values("SELECT state FROM trinity.rollout") == ["finished"] * GROUPS * SIZE
    assert scene.values("SELECT state FROM trinity.rollout_group") == ["complete"] * GROUPS
    assert set(scene.values("SELECT version_min || '-' || version_max FROM trinity.experience")) == {"0-0"}
    assert first.asked, "the server that died had requests"
    assert len(second.asked) > GROUPS * SIZE
