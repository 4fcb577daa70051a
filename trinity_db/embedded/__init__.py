"""The embedded PostgreSQL of a home: started on first use, shared by every process of the machine.

`place` says where everything is, `binaries` runs PostgreSQL's programs, `accounts` chooses their user,
`presence` finds out who is there, `logins` makes the database and its logins, `cluster` starts and stops.
`trinity_db.database` fills the database.
"""

import logging
from pathlib import Path

from trinity_db import homes
from trinity_db.embedded import binaries, logins
from trinity_db.embedded.cluster import Cluster
from trinity_db.embedded.place import READER

logger = logging.getLogger(__name__)


def cluster(home: Path) -> Cluster:
    """The embedded server of a home.

    Raises:
        DatabaseUnavailable: the wheel is not installed, or holds no binaries for this platform.
    """
    return Cluster(home.resolve(), binaries.installed())


def ensure_running(home: Path) -> str:
    """The URL of the home's database, which is made and started if need be. See Cluster.ensure_running."""
    one = cluster(home)
    if not one.data.exists():
        last = homes.last_used()
        elsewhere = f"; the last one used is in {last} (TRINITY_DB_HOME)" if last else ""
        logger.info("There is no store in %s: a new one begins there%s", one.home, elsewhere)
    url = one.ensure_running()
    homes.remember(one.home)
    return url


def reader_url(home: Path) -> str:
    """The URL of the home's database, which runs, for its login that may only read."""
    one = cluster(home)
    logins.admit_reader(one)
    return one.url(login=READER)


def revive(home: Path) -> bool:
    """Start the home's server if it crashed; False otherwise. See Cluster.revive."""
    return cluster(home).revive()


def stop(home: Path) -> bool:
    """Stop the home's server; False if none was running."""
    return cluster(home).stop()


def running(home: Path) -> bool:
    """Whether the home's server accepts connections."""
    return cluster(home).running()
