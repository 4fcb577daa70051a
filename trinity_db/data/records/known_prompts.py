"""Digests of prompts, with which synthesized tasks are recognized in their taskset despite case and spacing.

They are computed here, because the server's lower-casing depends on its locale. They are stored with each
task.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from trinity_db.postgres.connection import Transaction
from trinity_db.schema.queries import query


def prompt_of(payload: Mapping[str, Any]) -> str:
    """Return the text that distinguishes a task from others."""
    messages = payload.get("messages")
    if isinstance(messages, list) and all(isinstance(message, Mapping) for message in messages):
        return "\n\n".join(f"{message.get('role')}: {message.get('content')}" for message in messages)
    return str(payload.get("prompt"))


def digest_of(text: str) -> str:
    """Return the MD5 of a text without case and spaces, in hexadecimal."""
    return hashlib.md5("".join(text.lower().split()).encode(), usedforsecurity=False).hexdigest()


def stored_digest(payload: Mapping[str, Any]) -> bytes:
    """Return the digest of a task's prompt in the form of its row."""
    return bytes.fromhex(digest_of(prompt_of(payload)))


def is_known(tx: Transaction, name: str, payload: Mapping[str, Any]) -> bool:
    """Whether a taskset has a task with this prompt."""
    values = {"name": name, "digest": stored_digest(payload)}
    return tx.execute(query("find_prompt"), values).fetchone() is not None
