"""Approval of SQL conditions, so that a link from a stranger cannot load the server.

A condition is part of the page's link, so that people can keep and send it. It runs only with an approval
signed by this process, which the form gives to the visitor who submits it. After following a link from
elsewhere, or after a restart of the page, the visitor submits the form once.
"""

import hmac
import secrets

SECRET = secrets.token_bytes(32)
"""Signing key of this process."""


def approval(visitor: str | None, condition: str) -> str:
    """Sign a condition that this visitor submitted with the form."""
    text = f"{visitor or ''}\0{condition}".encode("utf-8", "surrogatepass")
    return hmac.new(SECRET, text, "sha256").hexdigest()


def is_approved(visitor: str | None, condition: str, proof: str) -> bool:
    """Whether a link has a valid approval for this visitor and condition."""
    return hmac.compare_digest(approval(visitor, condition).encode(), proof.encode("utf-8", "replace"))
