"""`trinity-db doctor`: what is wrong with this installation and this store, by trinity_db.diagnosis."""

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from trinity_db.cli import output
from trinity_db.inspection.words import printable

if TYPE_CHECKING:
    from trinity_db.diagnosis.finding import Finding


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say what is wrong with this installation and this store, and what to do about it.

    Looks at packages and disks, at the server's durability settings, at transactions and slots that keep the
    server from cleaning up, at sizes, statistics and indexes of our tables, at leases of dead workers, at
    what active runs learn from, at the first task of each as its model reads it, and at the environment of
    vLLM. It takes seconds, waits for no lock and writes nothing. An embedded store that is not running is
    started.

    Each finding is one line: ok, warn (slower than it should be, or not for ever) or fail (does not work, or
    may lose rows). The exit code is 1 if anything fails.

    Example:

        trinity-db doctor
    """
    from trinity_db.cli import first_task
    from trinity_db.diagnosis.doctor import examine
    from trinity_db.diagnosis.finding import Level
    from trinity_db.explorer.engines.vllm import diagnosis

    findings = examine()
    if any(finding.what == "schema version" and finding.level == Level.OK for finding in findings):
        findings += first_task.findings()
    findings += diagnosis.findings()
    if as_json:
        output.print_json([finding.to_json() for finding in findings])
    else:
        _print(findings)
    if any(finding.level == Level.FAIL for finding in findings):
        raise typer.Exit(1)


def _print(findings: list["Finding"]) -> None:
    """One line each, with a gap between the parts."""
    width = max(len(finding.what) for finding in findings)
    for number, (_, part) in enumerate(groupby(findings, lambda finding: finding.what.split()[0])):
        if number:
            print()
        for finding in part:
            print(f"{finding.level:<4}  {finding.what:<{width}}  {printable(str(finding))}")
