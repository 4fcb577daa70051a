"""`trinity-db serve`: offers attempts at a run's tasks to agents that other people start."""

import ipaddress
import os
from typing import Annotated

import typer

from trinity_db.cli.roles import Change, Config, Groups, Overrides, stoppable
from trinity_db.errors import ConfigError
from trinity_db.run.restart_command import wait_for_upgrade

SERVE_KEY = "TRINITY_DB_SERVE_KEY"


def serve(
    config: Config,
    overrides: Overrides = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on; 0: any free port.")] = 8410,
    groups: Groups = None,
    change: Change = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Serve a version to evaluation clients, and record nothing.")
    ] = False,
    version: Annotated[
        int | None,
        typer.Option("--version", metavar="N", min=0, help="Version for --plain. Default: the newest."),
    ] = None,
) -> None:
    """Serve agents that other people start, and record each call.

    The endpoint supports the protocols of OpenAI and Anthropic. POST /v1/attempts returns a task, a base
    URL and a key for an agent. The agent ends its attempt with POST /v1/attempts/KEY/finish and its
    reward. If --host is not a loopback address, agents need the key in TRINITY_DB_SERVE_KEY.

    With --plain it serves a version of an existing run: greedy unless a request sets a temperature, with
    echo and logprobs for completions, without attempts, and nothing is recorded.

    Example:

    \b
        trinity-db serve my-run.yaml --port 8410
        trinity-db serve my-run.yaml --plain --version 40
    """
    if version is not None and not plain:
        raise typer.BadParameter("--version needs --plain: attempts are made with the newest version")
    if plain and (groups is not None or change):
        raise typer.BadParameter("--plain makes no attempts: leave out --groups and --change")
    from trinity_db.explorer.http.listener import EndpointAddress
    from trinity_db.explorer.http.offers import Offers
    from trinity_db.run import joining
    from trinity_db.run.explore import run_explorer
    from trinity_db.run.plain import serve_plain

    key = os.environ.get(SERVE_KEY) or None
    if key is None and not _is_loopback(host):
        raise ConfigError(
            f"Any machine that reaches {host} could send requests: set {SERVE_KEY} to a key, or omit --host."
        )
    with stoppable():
        wait_for_upgrade()
        read = joining.read(config, overrides, joins=True)
        if plain:
            serve_plain(read, version, host, port, key)
            return
        offers = Offers(read.explorer.attempt_seconds, read.attempts_need_reward)
        run_explorer(read, change, groups, EndpointAddress(host, port, offers, key))


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
