"""`trinity-db download`: fetches a data set or a model from the Hugging Face Hub."""

import json
from pathlib import Path
from typing import Annotated

import typer

from trinity_db.cli.transfer import JsonOption


def download(
    name: Annotated[
        str, typer.Argument(metavar="OWNER/NAME", help="A data set on the Hub; with --model, a model.")
    ],
    model: Annotated[bool, typer.Option("--model", help="Fetch a model into the cache of the Hub.")] = False,
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="Target folder. Default: NAME in the current folder."),
    ] = None,
    subset: Annotated[str | None, typer.Option(help="Subset, if the data set has several.")] = None,
    split: Annotated[str | None, typer.Option(help="Split. Default: all.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit. Default: the newest.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Download a data set or a model from the Hugging Face Hub.

    A data set is written to a folder that import reads, a model to the Hub's cache. No other command
    downloads data sets. An interrupted download resumes. The file source.json in the folder records the
    revision, as a commit. HF_ENDPOINT, HF_HOME and HF_TOKEN have the same meaning as in the Hub's tools.

    With --model, the files of a model are downloaded, as a run with model.path OWNER/NAME does at its start.
    You can copy the folder that the command prints to the cache of a machine without network. Models come
    from ModelScope if TRINITY_DB_HUB=modelscope is set.

    Example:

    \b
        trinity-db download openai/gsm8k --subset main --split train
        trinity-db import gsm8k --as tasks --map prompt=question
        trinity-db download --model Qwen/Qwen2.5-0.5B-Instruct
    """
    if name.count("/") != 1 or not all(name.split("/")):
        raise typer.BadParameter(f"{name}: write it as OWNER/NAME, such as openai/gsm8k")
    if model:
        if to is not None or subset is not None or split is not None:
            raise typer.BadParameter("--to, --subset and --split are for data sets; leave them out")
        _download_model(name, revision, as_json)
        return
    from dataclasses import asdict

    from trinity_db.data.files.hub import download as fetch

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
        raise typer.BadParameter(f"{name}: is a local folder, or not the name of a model")
    pinned = hub.pin(name, revision)
    hub.folder(Path(name), pinned)
    cached = hub.cached(name)
    if as_json:
        print(json.dumps({"model": name, "revision": pinned, "folder": str(cached)}))
    else:
        print(f"{name} at {pinned} is in {cached}")
