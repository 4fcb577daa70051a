"""Serves one version of a run to evaluation clients, in this process."""

import asyncio
import logging
from contextlib import closing

from trinity_db.errors import ConfigError
from trinity_db.postgres.opening import open_reader
from trinity_db.run import joining
from trinity_db.run.configuration import RunConfig
from trinity_db.store import policies, runs
from trinity_db.store.policies import PolicyVersion
from trinity_db.worker.signals import endings

logger = logging.getLogger(__name__)


def serve_plain(config: RunConfig, version: int | None, host: str, port: int, key: str | None) -> None:
    """Serve a version until a signal arrives or the engine fails. It registers no worker, and writes nothing.

    Args:
        version: None: the newest.

    Raises:
        ConfigError: if the run has no such version on this machine, or the address is in use.
        EngineFailed: if the engine can no longer compute.
    """
    from trinity_db.explorer import engines
    from trinity_db.explorer.engines.engine import Engine
    from trinity_db.explorer.http.listener import EndpointAddress
    from trinity_db.explorer.http.plain import PlainEndpoint
    from trinity_db.explorer.loop.loading import LoadedVersion

    config = joining.pinned(config)
    policy = _version(config, version)

    async def serve(engine: Engine) -> None:
        address = EndpointAddress(host, port, key=key)
        explorer = config.explorer
        endpoint = PlainEndpoint(
            engine, config.name, address, explorer.requests, config.model, explorer.max_new_tokens
        )
        for number in endings():
            asyncio.get_running_loop().add_signal_handler(number, endpoint.end)
        loaded = LoadedVersion(engine, joining.recorded_places(config), _nothing)
        if (error := await loaded.try_to_load(policy)) is not None:
            raise ConfigError(f"Version {policy.version} of run '{config.name}' cannot be loaded: {error}")
        await endpoint.start()
        try:
            await endpoint.ended
        finally:
            await endpoint.stop()

    with closing(engines.create(config.explorer.engine, config.model)) as engine:
        asyncio.run(serve(engine))


def _version(config: RunConfig, version: int | None) -> PolicyVersion:
    with closing(open_reader()) as database, database.transaction(read_only=True) as tx:
        checkpoints = policies.with_checkpoint(tx, runs.find(tx, config.name).id)
    versions = [policy for policy in checkpoints if version in (None, policy.version)]
    if not versions:
        there = ", ".join(str(policy.version) for policy in reversed(checkpoints)) or "none"
        raise ConfigError(
            f"--version: run '{config.name}' has no checkpoint of that version; available: {there}."
        )
    return versions[0]


async def _nothing() -> None:
    """Write no attempts: there are none."""
