"""The digest of a prompt by which a task that steps make is found in its taskset, however it is written.

It is computed here and not by the server, whose lower-case letters depend on its locale. Imports store it
with each task. Tasks that were written without one, by earlier versions or by hand, get it when it is first
needed.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg.rows import DictRow

from trinity_db.database import Database, Transaction
from trinity_db.schema.queries import query
from trinity_db.store import runs

CHUNK = 2_000  # tasks in a transaction: a tenth of a second, for which imports into the taskset wait


def prompt_of(payload: Mapping[str, Any]) -> str:
    """The text of a task that tells it from others."""
    messages = payload.get("messages")
    if isinstance(messages, list) and all(isinstance(one, Mapping) for one in messages):
        return "\n\n".join(f"{one.get('role')}: {one.get('content')}" for one in messages)
    return str(payload.get("prompt"))


def digest_of(text: str) -> str:
    """MD5 of a text without case and spaces, in hexadecimal digits."""
    return hashlib.md5("".join(text.lower().split()).encode(), usedforsecurity=False).hexdigest()


def stored_digest(payload: Mapping[str, Any]) -> bytes:
    """The digest of a task's prompt, as its row has it."""
    return bytes.fromhex(digest_of(prompt_of(payload)))


def complete(database: Database, names: Sequence[str]) -> None:
    """Give every task of these tasksets its digest; almost always all have it."""
    for name in names:
        while True:
            with database.transaction() as tx:
                if not _missing(tx, name, 1):
                    break
                runs.lock_tasksets(tx, [name])  # so that two processors do not write the same rows
                tasks = _missing(tx, name, CHUNK)
                values = {
                    "ids": [task["id"] for task in tasks],
                    "digests": [stored_digest(task["payload"]) for task in tasks],
                }
                tx.execute(query("write_prompt_digests"), values)


def is_known(tx: Transaction, name: str, payload: Mapping[str, Any]) -> bool:
    """Whether a taskset whose digests are complete has a task with this prompt."""
    values = {"name": name, "digest": stored_digest(payload)}
    return tx.execute(query("find_prompt"), values).fetchone() is not None


def _missing(tx: Transaction, name: str, limit: int) -> list[DictRow]:
    return tx.execute(query("undigested_tasks"), {"name": name, "limit": limit}).fetchall()
