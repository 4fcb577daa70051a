"""Client of OpenAI's chat completions API, which vLLM, SGLang, llama.cpp, Ollama and most services
provide."""

import asyncio
import email.utils
import importlib.util
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from trinity_db.errors import ConfigError
from trinity_db.processors.lists.step import NotAnswered

if TYPE_CHECKING:
    import aiohttp


CONNECT_SECONDS = 10.0
KEPT_SECONDS = 2.0  # for idle connections; servers close theirs after 5, which can race with a request
MAX_BYTES = 4 << 20  # per answer
MAX_MESSAGE = 200  # characters kept of a server's error message
AGAIN = {408, 409, 425, 429}  # retryable statuses, in addition to 500 and above


def address(url: str) -> str:
    """Validate the address of an endpoint and return it.

    Raises:
        ValueError: if it is not an address, or contains a password.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("url has the form https://api.openai.com/v1")
    if parts.username or parts.password:
        raise ValueError("url must not contain a password; use key_env")
    return url


def variable(name: str | None) -> str | None:
    """Validate the name of an environment variable and return it.

    Raises:
        ValueError: if it is not a name.
    """
    if name is not None and not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        # The message does not include the value, which may be the key.
        raise ValueError("key_env must name an environment variable, such as JUDGE_KEY, not hold the key")
    return name


def key_of(step: str, key_env: str | None) -> str | None:
    """Return the endpoint's key from its environment variable, or None.

    Raises:
        ConfigError: if the variable is not set.
    """
    if key_env is None:
        return None
    if key := os.environ.get(key_env):
        return key
    raise ConfigError(
        f"{step}: the environment variable {key_env} is not set; it holds the key of the endpoint."
    )


def check_client(step: str) -> None:
    """Check that the HTTP client for a step is installed.

    Raises:
        ConfigError: if aiohttp is missing.
    """
    if importlib.util.find_spec("aiohttp") is None:
        raise ConfigError(f"{step} needs the package aiohttp: pip install 'trinity-db[judge]'.")


@dataclass(frozen=True)
class Reply:
    """A server's answer."""

    text: str
    model: str
    """Name of the model according to the server."""
    prompt_tokens: int
    completion_tokens: int


class JudgeEndpoint:
    """A model on a server.

    Args:
        url: Address including the version, such as https://api.openai.com/v1.
        body: Further fields of each request.
        key: Key for the header "Authorization"; it appears in no message.
    """

    def __init__(self, url: str, model: str, body: Mapping[str, Any], key: str | None) -> None:
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._body = {**body, "model": model}
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, messages: Sequence[Mapping[str, str]], **body: Any) -> Reply:
        """Return the server's answer, without a time limit.

        Raises:
            NotAnswered: if the server does not answer with a text.
        """
        import aiohttp

        if self._session is None:  # created in the event loop that it belongs to
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                headers={"Authorization": f"Bearer {self._key}"} if self._key else None,
            )
        payload = {**self._body, **body, "messages": messages}
        try:
            async with self._session.post(self._url, json=payload, allow_redirects=False) as answer:
                content = await _limited(answer)
                status, after = answer.status, answer.headers.get("Retry-After")
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise NotAnswered(f"{self._url}: {self._plain(str(error)) or type(error).__name__}") from error
        if status == 200:
            return self._reply(content)
        message = f"{self._url}: HTTP {status}: {self._plain(_message(content))}"
        is_final = status < 500 and status not in AGAIN
        raise NotAnswered(message, after=_seconds(after), is_final=is_final)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # the loop closes the sockets in its next iteration
        self._session = None

    def _reply(self, content: bytes) -> Reply:
        try:
            answer = json.loads(content)
            choice = answer["choices"][0]
            text, reason = choice["message"].get("content"), choice.get("finish_reason")
            usage = answer.get("usage") or {}
            used = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
            reply = Reply(text or "", str(answer.get("model") or self._body["model"]), used[0], used[1])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            shown = self._plain(content.decode(errors="replace"))
            raise NotAnswered(f"{self._url}: answered something other than a completion: {shown}") from error
        if not isinstance(text, str) or not text.strip() or reason == "length":
            why = "its answer was cut off; allow more tokens with body: {max_tokens: N}"
            refusal = choice["message"].get("refusal") or "nothing"
            message = why if reason == "length" else f"it answers {self._plain(str(refusal))}"
            raise NotAnswered(f"{self._url}: {message}", tokens=sum(used))
        return reply

    def _plain(self, text: str) -> str:
        """Return a text in one line, without the key, which some servers repeat."""
        if self._key:
            text = text.replace(self._key, "***")
        return " ".join(text.split())[:MAX_MESSAGE]


async def _limited(answer: "aiohttp.ClientResponse") -> bytes:
    """Return the body of an answer, limited to MAX_BYTES."""
    body = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        body += chunk
        if len(body) > MAX_BYTES:
            raise NotAnswered(f"{answer.url}: its answer has more than {MAX_BYTES >> 20} MiB")
    return bytes(body)


def _message(content: bytes) -> str:
    """Return a server's error message from one of the usual formats."""
    text = content.decode(errors="replace")
    try:
        form = json.loads(text)
    except ValueError:
        return text
    for key in ("error", "message", "detail"):
        if isinstance(form, dict) and key in form:
            form = form[key]
    return form if isinstance(form, str) else json.dumps(form)


def _seconds(after: str | None) -> float:
    """Parse the header Retry-After: seconds, or a date."""
    if not after:
        return 0.0
    try:
        return min(max(float(after), 0.0), 86_400.0)
    except ValueError:
        pass
    try:
        until = email.utils.parsedate_to_datetime(after).timestamp()
    except ValueError:
        return 0.0
    return min(max(until - time.time(), 0.0), 86_400.0)
