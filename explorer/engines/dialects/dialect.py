"""What each dialect does, and the errors by which it says that a server does not answer."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

import aiohttp

from trinity_db.errors import TrinityError
from trinity_db.explorer.engines.engine import Completion, Request

CONNECT_SECONDS = 10.0
KEPT_SECONDS = 2.0  # of an idle connection; the servers close theirs after 5, and a request may cross that


class ServerUnavailable(TrinityError):
    """The server is gone, fails, or gave the request up: ask another one, or ask again later."""


class ServerUnusable(TrinityError):
    """The server answers in a way that can never be trained on, or refuses the key or the route."""


class RequestRefused(TrinityError):
    """The request is wrong for every server."""


class Dialect(Protocol):
    """One kind of server. `url` is its address without a path, as http://host:8000.

    Each method raises ServerUnavailable or ServerUnusable, with one line that begins with the address.
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
        """Continue a prompt. Cancelling the caller closes the connection, by which the server gives up too.

        The response may go beyond a stop string: see `stops.cut_off`.

        Args:
            end_tokens: tokens that end a response; they are its last token.
            version: what the server confirmed last. If weights may have changed since, and the server does
                not say which token is of which version, its answer counts as ServerUnavailable.

        Raises:
            RequestRefused: the server calls the request wrong, or its log-probabilities are no numbers.
            PromptTooLong: the server calls the prompt too long.
        """

    async def health(self, session: aiohttp.ClientSession, url: str) -> None:
        """Return if the server can take requests."""

    async def version(self, session: aiohttp.ClientSession, url: str) -> str:
        """The label of the weights that the server samples with: a loaded version, or another text."""

    async def load(
        self, session: aiohttp.ClientSession, url: str, path: Path, version: int, *, seconds: float
    ) -> None:
        """Sample with the weights in a folder from the next token on, in responses that were begun too.

        The server pauses, reads the folder, confirms the version, and goes on. After an error it stays
        paused, since half of the weights may be new, until another load succeeds.

        Args:
            path: of the checkpoint's folder, as the server sees it.
            seconds: that reading the folder may take.

        Raises:
            ConfigError: the server refused the folder, and goes on with the weights of before.
        """

    async def score(self, session: aiohttp.ClientSession, url: str, token_ids: Sequence[int]) -> list[float]:
        """The log-probability of each token of a prompt but the first, at temperature 1."""


def open_session(key: str | None = None) -> aiohttp.ClientSession:
    """A session for any number of requests at once, of any length. It belongs to the running event loop.

    Args:
        key: goes into the header "Authorization" of every request.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        headers={"Authorization": f"Bearer {key}"} if key else None,
    )
