"""The command that fetches a data set of the Hugging Face Hub, and nothing else does."""

import json
from pathlib import Path
from typing import Annotated

import typer

from trinity_db.cli.transfer import JsonOption


def download(
    dataset: Annotated[str, typer.Argument(metavar="OWNER/NAME", help="A data set of the Hub.")],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="The folder; NAME in this one if left out."),
    ] = None,
    subset: Annotated[str | None, typer.Option(help="One subset, where the data set has several.")] = None,
    split: Annotated[str | None, typer.Option(help="One split; all if left out.")] = None,
    revision: Annotated[
        str | None, typer.Option(help="A branch, tag or commit; the newest if left out.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a data set of the Hugging Face Hub into a folder that import reads.

    No other command fetches data. A download that was cut short goes on where it was. The file source.json
    in the folder names the revision, as a commit. HF_ENDPOINT, HF_HOME and HF_TOKEN mean what they mean to
    the Hub's own programs.

    Example:

        trinity-db download openai/gsm8k --subset main --split train
        trinity-db import gsm8k --as tasks --map prompt=question
    """
    if dataset.count("/") != 1 or not all(dataset.split("/")):
        raise typer.BadParameter(f"{dataset}: write it as OWNER/NAME, as in openai/gsm8k")
    from dataclasses import asdict

    from trinity_db.imports.hub import download as fetch

    folder = to or Path(dataset.split("/")[1])
    source, was_there = fetch(dataset, folder, revision, subset, split)
    if as_json:
        print(json.dumps(asdict(source) | {"folder": str(folder), "known": was_there}))
        return
    print(f"{dataset} at {source.revision} {'is in' if was_there else 'written to'} {folder}")
    print(f"  next: trinity-db import {folder} --as tasks  (or what its rows are)")
