"""Write the dump of a store at the newest version, which later versions upgrade.

`python -m tests.migration.dump` writes tests/migration/stores/VERSION.sql. Run it before a release that has
a new version of the schema. Never change the file afterwards. PostgreSQL 15 writes it, and 18 reads it too.
"""

import re
import subprocess
from contextlib import closing
from pathlib import Path

from tests.support.postgres import cluster_15, discard, new_database, start
from tests.support.rows import Scene
from trinity_db import schema
from trinity_db.postgres import connection, opening

LEFT_OUT = ("owner", "privileges", "comments")  # an upgrade writes comments and rights anew
STORES = Path(__file__).parent / "stores"


def dump(url: str, pg_dump: Path) -> str:
    """Return the statements that make the store again, without the commands of psql."""
    done = subprocess.run(
        [pg_dump, "--rows-per-insert=1000", "--schema=trinity", *(f"--no-{part}" for part in LEFT_OUT), url],
        capture_output=True,
        check=True,
        text=True,
    )
    lines = (line for line in done.stdout.splitlines() if not line.startswith(("--", "\\")))
    return re.sub("\n\n+", "\n\n", "\n".join(lines).strip()) + "\n"


def main() -> None:
    cluster = cluster_15()
    assert cluster is not None, "no PostgreSQL 15 found"
    server = start(cluster)
    try:
        with new_database(server, "template0") as url:
            opening.upgrade(url)
            with closing(connection.Database(url)) as store:
                fill(store)
            path = STORES / f"{schema.HEAD}.sql"
            path.parent.mkdir(exist_ok=True)
            path.write_text(dump(url, cluster.binaries.folder / "pg_dump"), encoding="utf-8")
            print(path)
    finally:
        discard(cluster)


def fill(store: connection.Database) -> None:
    """Give the store rows of most tables: a run in the middle of its work."""
    scene = Scene.open(store)
    scene.make_ready(4)
    for step in (1, 2):
        scene.commit(scene.draw(step, size=step))
        scene.publish(step, step)
    scene.draw(3, size=1)


if __name__ == "__main__":
    main()
