"""The queue as files: open reviews for another program, and the verdicts that it returns."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

from trinity_db.cli import output
from trinity_db.errors import ConfigError

if TYPE_CHECKING:
    from trinity_db.data.annotations import FileVerdict
    from trinity_db.postgres.connection import Database, Transaction
    from trinity_db.store.reviews import Question
    from trinity_db.store.runs import Run

FORMS = ("label_studio", "argilla")
AT_ONCE = 100  # verdicts per transaction
RETRY_SECONDS = 10  # enough for a server restart; then the command fails


def export(
    database: "Database", run: "Run", form: str, to: Path | None, pairs: bool, question: "Question"
) -> None:
    """Write the queue in the format of another program.

    Raises:
        ConfigError: if the queue is empty.
    """
    from trinity_db.data import annotations
    from trinity_db.store import reviews

    with database.transaction() as tx:
        if pairs:
            reviews.ask_pairs(tx, run, question)
        else:
            reviews.ask_awaited(tx, run.id, question)
        waiting = reviews.open_reviews(tx, run.id, pairs)
    if not waiting:
        raise ConfigError(f"Nothing of '{run.name}' waits for a verdict: {remedy(run, pairs)}.")
    with output.opened(to) as out:
        print(annotations.write(waiting, run.name, form, only_ascii=to is None), file=out)
    if to is not None:
        print(f"{to}: {len(waiting)} {'pairs' if pairs else 'rows'} that wait for verdicts.")


def import_(database: "Database", run: "Run", file: Path) -> None:
    """Import the verdicts in a file. Importing a file again changes nothing."""
    from trinity_db.data import annotations

    verdicts = sorted(annotations.read(file), key=lambda verdict: verdict.review_id)
    outcomes = []
    for begin in range(0, len(verdicts), AT_ONCE):
        outcomes += _give(database, run, verdicts[begin : begin + AT_ONCE], file)
    counts = {outcome: outcomes.count(outcome) for outcome in ("new", "changed", "known")}
    print(f"{counts['new']} verdicts are new, {counts['changed']} changed, {counts['known']} already known.")


def _give(database: "Database", run: "Run", verdicts: "list[FileVerdict]", file: Path) -> list[str]:
    deadline = time.monotonic() + RETRY_SECONDS

    def give() -> list[str]:
        with database.transaction() as tx:
            return [_record(tx, run, verdict, file) for verdict in verdicts]

    return database.retry(give, give_up=lambda: time.monotonic() > deadline)


def _record(tx: "Transaction", run: "Run", verdict: "FileVerdict", file: Path) -> str:
    from trinity_db.errors import NotFound
    from trinity_db.store import verdicts
    from trinity_db.store.rewards import check_words

    try:
        check_words([verdict.author], "the author")
        about = (verdict.review_id, verdict.author, verdict.verdict, verdict.swapped)
        return verdicts.give(tx, run.id, *about)
    except (ConfigError, NotFound) as error:
        reason = str(error).rstrip(".")
        raise ConfigError(
            f"{file}: {verdict.location}: {reason}. Fix it and import the file again."
        ) from None


def remedy(run: "Run", pairs: bool) -> str:
    """Explain how more items enter the queue."""
    if pairs:
        return "each group with two different responses is asked about once"
    waits = (
        "its groups enter the queue when they are complete, and " if run.config.get("requires_reward") else ""
    )
    return f"{waits}trinity-db label {run.name} --ask CONDITION adds other rows"
