"""A server that speaks OpenAI's chat completions, as vLLM, SGLang, llama.cpp, Ollama and most services do."""

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
from trinity_db.processors.step import NotAnswered

if TYPE_CHECKING:
    import aiohttp


CONNECT_SECONDS = 10.0
KEPT_SECONDS = 2.0  # of an idle connection; servers close theirs after 5, and a request may cross that
MAX_BYTES = 4 << 20  # of an answer
MAX_MESSAGE = 200  # characters of what a server says about an error
AGAIN = {408, 409, 425, 429}  # and 500 or more: another try may be answered


def address(url: str) -> str:
    """The address, checked.

    Raises:
        ValueError: it is none, or holds a password.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("url has the form https://api.openai.com/v1")
    if parts.username or parts.password:
        raise ValueError("url holds no password; use key_env")
    return url


def variable(name: str | None) -> str | None:
    """The name of an environment variable, checked.

    Raises:
        ValueError: it is none.
    """
    if name is not None and not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
        # The message does not repeat it: it may be the key.
        raise ValueError("key_env names an environment variable, as JUDGE_KEY; the key itself stands there")
    return name


def key_of(step: str, key_env: str | None) -> str | None:
    """The key of the endpoint, for the step of that name.

    Raises:
        ConfigError: there is none where one is named.
    """
    if key_env is None:
        return None
    if key := os.environ.get(key_env):
        return key
    raise ConfigError(
        f"{step}: the environment variable {key_env} is not set; it holds the key of the endpoint."
    )


def check_client(step: str) -> None:
    """Find out that the step of that name can ask.

    Raises:
        ConfigError: there is no aiohttp.
    """
    if importlib.util.find_spec("aiohttp") is None:
        raise ConfigError(f"{step} needs the package aiohttp: pip install 'trinity-db[judge]'.")


@dataclass(frozen=True)
class Reply:
    """What a server answers."""

    text: str
    model: str
    """As the server calls it."""
    prompt_tokens: int
    completion_tokens: int


class Endpoint:
    """One server and the model that it is asked for.

    Args:
        url: address up to the version, as https://api.openai.com/v1.
        body: further fields of each request.
        key: goes into the header "Authorization", and into no message.
    """

    def __init__(self, url: str, model: str, body: Mapping[str, Any], key: str | None) -> None:
        self._url = f"{url.rstrip('/')}/chat/completions"
        self._body = {**body, "model": model}
        self._key = key
        self._session: aiohttp.ClientSession | None = None

    async def ask(self, messages: Sequence[Mapping[str, str]], **body: Any) -> Reply:
        """What the server answers; it takes as long as it takes.

        Raises:
            NotAnswered: it does not, or not with a text.
        """
        import aiohttp

        if self._session is None:  # within the event loop to which it belongs
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT_SECONDS),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
                headers={"Authorization": f"Bearer {self._key}"} if self._key else None,
            )
        asked = {**self._body, **body, "messages": messages}
        try:
            async with self._session.post(self._url, json=asked, allow_redirects=False) as answer:
                said = await _limited(answer)
                status, after = answer.status, answer.headers.get("Retry-After")
        except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError
            raise NotAnswered(f"{self._url}: {self._plain(str(error)) or type(error).__name__}") from error
        if status == 200:
            return self._reply(said)
        message = f"{self._url}: HTTP {status}: {self._plain(_message(said))}"
        is_final = status < 500 and status not in AGAIN
        raise NotAnswered(message, after=_seconds(after), is_final=is_final)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            await asyncio.sleep(0)  # the loop closes the sockets in its next turn
        self._session = None

    def _reply(self, said: bytes) -> Reply:
        try:
            answer = json.loads(said)
            choice = answer["choices"][0]
            text, reason = choice["message"].get("content"), choice.get("finish_reason")
            usage = answer.get("usage") or {}
            used = [int(usage.get(name) or 0) for name in ("prompt_tokens", "completion_tokens")]
            reply = Reply(text or "", str(answer.get("model") or self._body["model"]), used[0], used[1])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            shown = self._plain(said.decode(errors="replace"))
            raise NotAnswered(f"{self._url}: answers something other than a completion: {shown}") from error
        if not isinstance(text, str) or not text.strip() or reason == "length":
            why = "its answer was cut off; allow more tokens by body: {max_tokens: N}"
            refusal = choice["message"].get("refusal") or "nothing"
            message = why if reason == "length" else f"it answers {self._plain(str(refusal))}"
            raise NotAnswered(f"{self._url}: {message}", tokens=sum(used))
        return reply

    def _plain(self, text: str) -> str:
        """A text in one line, and without the key, which some servers repeat."""
        if self._key:
            text = text.replace(self._key, "***")
        return " ".join(text.split())[:MAX_MESSAGE]


async def _limited(answer: "aiohttp.ClientResponse") -> bytes:
    """The body of an answer, as long as it may be."""
    said = bytearray()
    async for chunk in answer.content.iter_chunked(1 << 16):
        said += chunk
        if len(said) > MAX_BYTES:
            raise NotAnswered(f"{answer.url}: its answer has more than {MAX_BYTES >> 20} MiB")
    return bytes(said)


def _message(said: bytes) -> str:
    """What a server says about an error, in one of the usual forms."""
    text = said.decode(errors="replace")
    try:
        form = json.loads(text)
    except ValueError:
        return text
    for key in ("error", "message", "detail"):
        if isinstance(form, dict) and key in form:
            form = form[key]
    return form if isinstance(form, str) else json.dumps(form)


def _seconds(after: str | None) -> float:
    """What the header Retry-After asks for: seconds, or a date."""
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
