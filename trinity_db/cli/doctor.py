"""`trinity-db doctor`: diagnoses this installation and this store with trinity_db.insight.checks."""

from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from trinity_db.cli import output
from trinity_db.insight.words import printable

if TYPE_CHECKING:
    from trinity_db.insight.checks.finding import Finding


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find problems of this installation and this store.

    Checks packages and disks, the server's durability settings, transactions and slots that keep the server
    from cleaning up, sizes, statistics and indexes of trinity-db's tables, leases of dead workers, the
    learning of active runs, the first task of each as its model reads it, and the environment of vLLM. Takes
    seconds, waits for no lock and writes nothing. Starts an embedded server that is not running.

    Prints one line per finding: ok, warn (slow, or a problem later) or fail (does not work, or may lose
    rows). The exit code is 1 if anything fails.

    Example:

        trinity-db doctor
    """
    from trinity_db.explorer.engines.vllm import diagnosis
    from trinity_db.insight.checks.doctor import examine
    from trinity_db.insight.checks.finding import Level
    from trinity_db.run import first_task

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
    """Print one line per finding, with a gap between the parts."""
    width = max(len(finding.what) for finding in findings)
    for number, (_, part) in enumerate(groupby(findings, lambda finding: finding.what.split()[0])):
        if number:
            print()
        for finding in part:
            print(f"{finding.level:<4}  {finding.what:<{width}}  {printable(str(finding))}")
