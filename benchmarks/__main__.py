"""Run benchmarks, print their tables and write them to RESULTS.md: `python -m benchmarks`."""

import importlib
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import machine, report, server
from benchmarks.context import Context
from benchmarks.measure import Result
from trinity_db.errors import TrinityError

MEASURES = ("ingest", "draw", "claims", "explore", "trainer", "addition")
"""Modules of this package with a function `run(context) -> list[Result]`."""
TEMPORARY = Path(tempfile.gettempdir())
PEERS_PYTHON = Path(__file__).parents[1] / ".venv-bench" / "bin" / "python"


def main(
    only: Annotated[list[str] | None, typer.Option(help=f"A measure: {', '.join(MEASURES)}.")] = None,
    quick: Annotated[bool, typer.Option(help="Use a tenth of the rows and write no results.")] = False,
    repetitions: Annotated[int, typer.Option(min=1, help="Repetitions of each measurement.")] = 5,
    scratch: Annotated[Path, typer.Option(help="Folder on a disk for the servers' data.")] = TEMPORARY,
) -> None:
    """Measure the store against bare PostgreSQL and against peers."""
    names = only or list(MEASURES)
    if unknown := sorted(set(names) - set(MEASURES)):
        raise typer.BadParameter(f"no such measure: {', '.join(unknown)}", param_hint="--only")
    peers = PEERS_PYTHON if PEERS_PYTHON.exists() else None
    context = Context(repetitions, quick, scratch, peers)
    try:
        server.refuse_memory(scratch)
        is_whole = _run(context, names)
    except TrinityError as error:
        sys.exit(f"error: {error}")
    sys.exit(0 if is_whole else 1)


def _run(context: Context, names: Sequence[str]) -> bool:
    """Run measures one after the other. Returns whether all succeeded."""
    facts = machine.facts(context)
    failed = []
    for name in names:
        _say(f"{name} ...")
        start = time.monotonic()
        try:
            results: list[Result] = importlib.import_module(f"benchmarks.{name}").run(context)
        except Exception:  # continue with the others
            traceback.print_exc()
            failed.append(name)
            continue
        _say(f"{name}: {len(results)} results in {time.monotonic() - start:.0f} s")
        print(report.section(name, facts, results))
        if not context.quick:
            report.write(name, facts, results)
    for name in failed:
        _say(f"{name} FAILED; see its traceback above")
    return not failed


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
