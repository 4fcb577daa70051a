"""The interface of a dialect, and its errors."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

import aiohttp

from trinity_db.errors import TrinityError
from trinity_db.explorer.engines.engine import Completion, Request

CONNECT_SECONDS = 10.0
KEPT_SECONDS = 2.0  # reuse of idle connections; servers close theirs after 5, possibly during a request


class ServerUnavailable(TrinityError):
    """The server is unreachable, fails, or aborted the request: use another one, or retry later."""


class ServerUnusable(TrinityError):
    """The server's responses cannot be trained on, or it rejects the key or the route."""


class Dialect(Protocol):
    """One kind of server. `url` is its address without a path, such as http://host:8000.

    Each method raises ServerUnavailable or ServerUnusable, with a one-line message that starts with the
    address.
    """

    async def generate(
        self,
        session: aiohttp.ClientSession,
        url: str,
        request: Request,
        *,
        end_tokens: Collection[int],
        version: int,
    ) -> Completion:
        """Continue a prompt. Cancelling the caller closes the connection, and so aborts the request.

        The response may extend beyond a stop string: see `stops.cut_off`.

        Args:
            end_tokens: tokens that end a response; the end token is included.
            version: last version confirmed by the server. If weights may have changed since, and the server
                does not return the version of each token, its response counts as ServerUnavailable.

        Raises:
            RequestRefused: if the server rejects the request.
            RequestFailed: if its log-probabilities are not numbers.
            PromptTooLong: if the server rejects the prompt as too long.
        """

    async def health(self, session: aiohttp.ClientSession, url: str) -> None:
        """Return if the server can accept requests."""

    async def version(self, session: aiohttp.ClientSession, url: str) -> str:
        """Return the label of the server's weights: a loaded version, or another string."""

    async def load(
        self, session: aiohttp.ClientSession, url: str, path: Path, version: int, *, seconds: float
    ) -> None:
        """Use the weights in a folder from the next token on, including in unfinished responses.

        The server pauses, reads the folder, confirms the version, and resumes. After an error it stays paused
        until another load succeeds, since half of the weights may be new.

        Args:
            path: the checkpoint's folder, as the server sees it.
            seconds: timeout for reading the folder.

        Raises:
            ConfigError: if the server rejected the folder, and keeps its previous weights.
        """

    async def score(self, session: aiohttp.ClientSession, url: str, token_ids: Sequence[int]) -> list[float]:
        """Return the log-probability of each token of a prompt except the first, at temperature 1."""


def open_session(key: str | None = None) -> aiohttp.ClientSession:
    """Open a session in the running event loop, without limits on the number and duration of requests.

    Args:
        key: sent in the "Authorization" header of every request.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        headers={"Authorization": f"Bearer {key}"} if key else None,
    )
