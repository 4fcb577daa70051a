"""The embedded PostgreSQL server of a home: started on first use, shared by all processes of the machine.

`place` defines paths and addresses, `binaries` runs PostgreSQL's programs, `accounts` selects their user,
`presence` checks whether the server is running, `logins` creates the database and its logins, `cluster`
starts and stops the server. `trinity_db.postgres.connection` creates the schema.
"""

import logging
from pathlib import Path

from trinity_db.postgres import recent_stores
from trinity_db.postgres.embedded import binaries, logins
from trinity_db.postgres.embedded.cluster import Cluster
from trinity_db.postgres.embedded.home_paths import READER

logger = logging.getLogger(__name__)


def cluster(home: Path) -> Cluster:
    """Return the embedded server of a home.

    Raises:
        DatabaseUnavailable: if the wheel is not installed, or has no binaries for this platform.
    """
    return Cluster(home.resolve(), binaries.installed())


def ensure_running(home: Path) -> str:
    """Return the URL of the home's database, created and started if needed. See Cluster.ensure_running."""
    server = cluster(home)
    if not server.data.exists():
        last = recent_stores.last_used()
        elsewhere = f"; the one used last is in {last} (TRINITY_DB_HOME)" if last else ""
        logger.info("There is no store in %s: creating a new one%s", server.home, elsewhere)
    url = server.ensure_running()
    recent_stores.remember(server.home)
    return url


def reader_url(home: Path) -> str:
    """Return the URL of the home's running database, for its read-only login."""
    server = cluster(home)
    logins.admit_reader(server)
    return server.url(login=READER)


def revive(home: Path) -> bool:
    """Start the home's server if it has crashed; False otherwise. See Cluster.revive."""
    return cluster(home).revive()


def stop(home: Path) -> bool:
    """Stop the home's server; False if none was running."""
    return cluster(home).stop()


def running(home: Path) -> bool:
    """Whether the home's server accepts connections."""
    return cluster(home).running()
