"""`trinity-db serve`: gives attempts at a run's tasks to agents that other people start."""

import ipaddress
import os
from typing import Annotated

import typer

from trinity_db.cli.again import wait_for_upgrade
from trinity_db.cli.roles import Change, Config, Groups, Overrides, stoppable
from trinity_db.errors import ConfigError

SERVE_KEY = "TRINITY_DB_SERVE_KEY"


def serve(
    config: Config,
    overrides: Overrides = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: any.")] = 8410,
    groups: Groups = None,
    change: Change = False,
) -> None:
    """Answer agents that other people start, by the protocols of OpenAI and Anthropic, and record each call.

    POST /v1/attempts gives an agent a task, a base URL and a key. The agent ends its attempt by POST
    /v1/attempts/KEY/finish, with its reward. With --host other than this machine's own, agents need the key
    that TRINITY_DB_SERVE_KEY holds.

    Example:

        trinity-db serve my-run.yaml --port 8410
    """
    from trinity_db.cli import launch
    from trinity_db.explorer.recording.listener import Place
    from trinity_db.explorer.recording.offers import Offers

    key = os.environ.get(SERVE_KEY) or None
    if key is None and not _is_loopback(host):
        raise ConfigError(
            f"Any machine that reaches {host} could ask: put a key into {SERVE_KEY}, or leave out --host."
        )
    with stoppable():
        wait_for_upgrade()
        read = launch.read(config, overrides)
        launch.explore(read, change, groups, Place(host, port, Offers(read.explorer.attempt_seconds), key))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
