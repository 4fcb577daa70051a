"""Whether a visitor asked for a condition here: the link of a stranger must not make the server work.

A condition is part of the link of a page, so that it can be kept and sent. It runs only with an approval of
this process, which the form gives to the visitor who submits it. With a link that comes from elsewhere, and
after a restart of the page, the visitor submits the form once.
"""

import hmac
import secrets

SECRET = secrets.token_bytes(32)
"""Of this process."""


def approval(visitor: str | None, condition: str) -> str:
    """What a link has beside a condition that this visitor sent by the form."""
    text = f"{visitor or ''}\0{condition}".encode("utf-8", "surrogatepass")
    return hmac.new(SECRET, text, "sha256").hexdigest()


def is_approved(visitor: str | None, condition: str, given: str) -> bool:
    """Whether a link has it."""
    return hmac.compare_digest(approval(visitor, condition).encode(), given.encode("utf-8", "replace"))
