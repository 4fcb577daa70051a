"""Opens a run for a program that does the work of one of its roles."""

from trinity_db.postgres.connection import Database, retry
from trinity_db.postgres.opening import open_database
from trinity_db.store import runs
from trinity_db.worker.service import LEASE_SECONDS


def join_run(url: str | None, name: str) -> tuple[Database, runs.Run]:
    """Open the store and find a run. Waits while the store, which has answered before, is unreachable.

    Raises:
        NotFound: with the most similar name.
    """
    database = retry(lambda: open_database(LEASE_SECONDS, url=url))

    def find() -> runs.Run:
        with database.transaction() as tx:
            return runs.find(tx, name)

    try:
        return database, database.retry(find)
    except BaseException:
        database.close()
        raise
