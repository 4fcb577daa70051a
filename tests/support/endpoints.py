"""An endpoint that knows one key, without store and model. As a program it has few descriptors."""

import asyncio
import logging
import sys
from types import SimpleNamespace
from typing import Any

from tests.support.idle_connections import lower_descriptor_limit
from trinity_db.explorer.http.endpoint import Endpoint
from trinity_db.explorer.http.listener import EndpointAddress
from trinity_db.store.calls import Entered
from trinity_db.store.groups import ClaimedGroup

UNUSED: Any = None


async def started(key: str, keyless_seconds: float) -> Endpoint:
    """It answers `GET /v1/models` for the key, and refuses others."""
    endpoint = Endpoint(UNUSED, "m", EndpointAddress(), keyless_seconds=keyless_seconds)
    await endpoint.start()
    calls = SimpleNamespace(conversations=SimpleNamespace())
    policy: Any = SimpleNamespace(calls=calls, renderer=SimpleNamespace(thought_marks=[]))
    endpoint.let_in(Entered(1, key, 0, {}, UNUSED), ClaimedGroup(1, 0, {}, [0]), 0, policy)
    return endpoint


async def serve(key: str) -> None:
    """Print the URL, and answer until the process is killed."""
    endpoint = await started(key, keyless_seconds=600)
    print(endpoint.url, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    lower_descriptor_limit()
    logging.basicConfig()
    asyncio.run(serve(sys.argv[1]))
