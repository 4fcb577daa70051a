"""The command that fetches a data set or a model of the Hugging Face Hub."""

import json
from pathlib import Path
from typing import Annotated

import typer

from trinity_db.cli.transfer import JsonOption


def download(
    name: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="A data set of the Hub; with --model a model.")
    ],
    model: Annotated[bool, typer.Option("--model", help="Fetch a model, into the cache of the Hub.")] = False,
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
    """Fetch a data set of the Hugging Face Hub into a folder that import reads, or a model into the cache.

    No other command fetches data. A download that was cut short goes on where it was. The file source.json
    in the folder names the revision, as a commit. HF_ENDPOINT, HF_HOME and HF_TOKEN mean what they mean to
    the Hub's own programs.

    With --model the files that a model needs are downloaded, as a run with model.path OWNER/NAME does at its
    start. The folder that the command names can be copied to the cache of a machine without network. Models
    come from ModelScope if TRINITY_DB_HUB=modelscope is set.

    Example:

        trinity-db download openai/gsm8k --subset main --split train
        trinity-db import gsm8k --as tasks --map prompt=question
        trinity-db download --model Qwen/Qwen2.5-0.5B-Instruct
    """
    if name.count("/") != 1 or not all(name.split("/")):
        raise typer.BadParameter(f"{name}: write it as OWNER/NAME, as in openai/gsm8k")
    if model:
        if to is not None or subset is not None or split is not None:
            raise typer.BadParameter("--to, --subset and --split are for data sets; leave them out")
        _download_model(name, revision, as_json)
        return
    from dataclasses import asdict

    from trinity_db.imports.hub import download as fetch

    folder = to or Path(name.split("/")[1])
    source, was_there = fetch(name, folder, revision, subset, split)
    if as_json:
        print(json.dumps(asdict(source) | {"folder": str(folder), "known": was_there}))
        return
    print(f"{name} at {source.revision} {'is in' if was_there else 'written to'} {folder}")
    print(f"  next: trinity-db import {folder} --as tasks  (or what its rows are)")


def _download_model(name: str, revision: str | None, as_json: bool) -> None:
    from trinity_db.models import hub

    if not hub.is_name(Path(name)):
        raise typer.BadParameter(f"{name}: is a folder here, or no name of a model")
    pinned = hub.pin(name, revision)
    hub.folder(Path(name), pinned)
    cached = hub.cached(name)
    if as_json:
        print(json.dumps({"model": name, "revision": pinned, "folder": str(cached)}))
    else:
        print(f"{name} at {pinned} is in {cached}")
