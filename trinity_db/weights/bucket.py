"""The objects of one run in an object store: S3, Google, Azure, or a local folder (file://).

Each object is written with one PUT, so it appears whole or not at all, and a crash leaves no unfinished
multipart upload, which a store would bill without listing it.
"""

import importlib
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from trinity_db.errors import ConfigError, MissingExtra, TrinityError
from trinity_db.weights import daemon_threads

Result = TypeVar("Result")

EXTRA = "object-store"
REQUEST_SECONDS = 120  # timeout of a request; objects have at most PART_BYTES, so 2 Mbit/s is enough
CONNECT_SECONDS = 5
RETRIES = 3  # retries of a request by the library, within RETRY_SECONDS
RETRY_SECONDS = 10
CONTAINERS = ("abfs", "abfss")  # schemes with a container before the @
# Prefixes of the environment variables that the library reads, by scheme of the address.
VARIABLES = {"s3": "AWS", "s3a": "AWS", "gs": "GOOGLE"} | dict.fromkeys(
    ("az", "azure", "adl", *CONTAINERS), "AZURE"
)
MAX_OBJECT_BYTES = 256 << 20  # largest object read into memory
PART_BYTES = 32 << 20  # size of an object: several are transferred at a time, each in memory

# The library's text for a response: its status, then the server's document, which has the same form in S3,
# Google and Azure. Azure appends the number and time of the request.
ANSWER = re.compile(
    r"(status code: (?P<status>\d+ [^:]*)|error response)"
    r"(:.*?<Code>(?P<code>[^<]*)</Code>(.*?<Message>(?P<text>[^<]*?)(\s+RequestId:[^<]*)?<)?)?",
    re.DOTALL,
)
# Each deletion of a bulk request is answered separately.
DELETION = re.compile(r"request failed for key .*?: (?P<text>[^\n]*) \(code: (?P<code>\w+)\)")
# An address in the library's text: it may contain credentials or a signature.
LINK = re.compile(r"(?P<shown>\bhttps?://)([^\s/@]*@)?(?P<place>[^\s?]*)(\?\S*)?")
TIMES = re.compile(r" in [\d.]+(ns|µs|ms|s)(?=[ ,])")  # repeated failures must read the same
CREDENTIALS = "Check the credentials and the region in the environment, and their rights."
NO_CREDENTIALS = "169.254.169.254"  # metadata server, asked if the environment has no credentials
NO_BUCKET = re.compile(r"\b(NoSuchBucket|ContainerNotFound)\b")
# Refusals that the library treats as transient, also when it lists objects: HTTP statuses and server codes.
REFUSALS = re.compile(
    r"(301|401|403|AccessDenied)\b"
    r"|400\b.*, (ExpiredToken|InvalidToken|AuthorizationHeaderMalformed|InvalidResourceName)\b"
)


class Unreachable(TrinityError):
    """The object store is unreachable or fails; a retry may succeed."""


class Refused(TrinityError):
    """The object store denies access with these credentials, or has no such bucket."""


class NoBucket(Refused):
    """The bucket does not exist."""


class Missing(TrinityError):
    """The object does not exist."""


class TooLarge(TrinityError):
    """An object is larger than the limit for reads into memory."""


class Bucket:
    """The objects under one address.

    Args:
        url: the address, such as s3://bucket/prefix.

    Raises:
        ConfigError: if it is not the address of an object store, or its settings are wrong.
        MissingExtra: if the package is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            check(url)
        except ValueError as error:
            raise ConfigError(f"trainer.weights: {error}") from error
        self.url = url.rstrip("/")
        self._library = _library()
        # Folders of a file:// address vanish with their last file, like the prefixes of other stores.
        is_folder = urlsplit(url).scheme == "file"
        variables = VARIABLES.get(urlsplit(url).scheme)
        options = {"mkdir": True, "automatic_cleanup": True} if is_folder else _options(variables)
        try:
            self._store = self._library.store.from_url(self.url, **options)
        except (self._library.exceptions.BaseError, ValueError, TypeError, OSError) as error:
            advice = f". Check {variables}_* in the environment." if variables else ""
            raise ConfigError(f"trainer.weights: {url}: {_line(error).rstrip('.')}{advice}") from error

    def put(self, name: str, content: bytes) -> None:
        """Write an object, replacing any of that name."""
        self._ask(name, lambda: self._library.put(self._store, name, content, use_multipart=False))

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless it exists. Return whether it now has this content.

        If a response is lost and the request repeated, the object already exists.
        """

        def put() -> bool:
            try:
                self._library.put(self._store, name, content, mode="create", use_multipart=False)
            except self._library.exceptions.AlreadyExistsError:
                return False
            return True

        return self._ask(name, put) or self.get(name) == content

    def get(self, name: str, most: int = MAX_OBJECT_BYTES) -> bytes:
        """Return the content of an object.

        Raises:
            Missing: if it does not exist.
            TooLarge: if it has more than `most` bytes; nothing is read then.
        """

        def read() -> bytes:
            answer = self._library.get(self._store, name)
            if answer.meta["size"] > most:
                raise TooLarge(
                    f"{self.url}/{name}: has {answer.meta['size']:,} bytes; at most {most:,} are read."
                )
            return bytes(answer.bytes())

        return self._ask(name, read)

    def names(self, prefix: str | None = None) -> list[str]:
        """List the names of all objects below a prefix, which consists of whole path segments."""

        def listed() -> list[str]:
            return [entry["path"] for some in self._library.list(self._store, prefix) for entry in some]

        return self._ask(prefix or "its objects", listed)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, ignoring missing ones."""
        for name in names:  # one by one: not every store supports bulk deletion
            with suppress(Missing):
                self._ask(name, partial(self._library.delete, self._store, name))

    def _look(self) -> None:
        """Called by `_ask` during a request. Raising an error abandons the request."""

    def _ask(self, name: str, request: Callable[[], Result]) -> Result:
        """Run a request of the library and translate its errors."""
        known = self._library.exceptions
        title = f"{self.url}/{name}"
        try:
            return daemon_threads.in_background(request, self._look)
        except (known.BaseError, OSError) as error:
            message = _line(error)
            if NO_BUCKET.search(message):
                raise NoBucket(
                    f"{title}: there is no such bucket or container; make it, or name another."
                ) from error
            if isinstance(error, known.NotFoundError | FileNotFoundError):
                raise Missing(f"{title}: there is no such object.") from error
            if NO_CREDENTIALS in message:
                raise Unreachable(f"{title}: the environment has no credentials: {message}") from error
            if isinstance(error, known.PermissionDeniedError | known.UnauthenticatedError):
                raise Refused(f"{title}: the object store refuses it: {message}. {CREDENTIALS}") from error
            if REFUSALS.match(message) or "configured region" in message:
                raise Refused(f"{title}: the object store refuses it: {message}. {CREDENTIALS}") from error
            raise Unreachable(f"{title}: the object store fails: {message}") from error


def _options(variables: str | None) -> dict[str, Any]:
    """Return client options for network stores, overriding client options of the environment.

    Args:
        variables: prefix of the environment variables. None: this scheme has none, and requires TLS.
    """
    allowed = os.environ.get(f"{variables}_ALLOW_HTTP", "") if variables else ""
    allows_http = allowed.lower() in ("1", "true")
    return {
        "client_options": {
            "timeout": f"{REQUEST_SECONDS}s",
            "connect_timeout": f"{CONNECT_SECONDS}s",
            "allow_http": allows_http,
        },
        "retry_config": {"max_retries": RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
    }


def check(url: str) -> None:
    """Refuse an address that contains a secret, since rows of the store and messages repeat it.

    Raises:
        ValueError: if it does, or is not an address. The message does not repeat it.
    """
    try:
        parts = urlsplit(url)
    except ValueError:
        parts = urlsplit("")
    login, is_login, _ = parts.netloc.rpartition("@")
    if parts.scheme in CONTAINERS and ":" not in login:
        is_login = ""
    if is_login or parts.query or parts.fragment:
        raise ValueError(
            "the address holds a password or a key, and rows of the store would repeat it; "
            "put it into the variables of the environment that the object store's library reads."
        )
    is_place = "://" in url and (parts.netloc or parts.scheme == "file") and parts.scheme != "memory"
    if not is_place or not url.isprintable() or url != url.strip():
        raise ValueError("this is not the address of an object store, such as s3://bucket/prefix.")


def _library() -> Any:
    try:
        importlib.import_module("obstore.store")
        importlib.import_module("zstandard")
        return importlib.import_module("obstore")
    except ModuleNotFoundError as error:
        raise MissingExtra(EXTRA, error.name or "obstore") from error


def _line(error: Exception) -> str:
    """Return the server's answer, or else the first line of the library's error.

    The library's further lines are the request and all causes.
    """
    whole = str(error)
    if (answer := ANSWER.search(whole)) is not None and NO_CREDENTIALS not in whole:
        parts = [(answer[part] or "").strip().rstrip(".") for part in ("status", "code", "text")]
        return " ".join(", ".join(filter(None, parts)).split())[:300]
    if (deletion := DELETION.search(whole)) is not None:
        return f"{deletion['code']}, {deletion['text'].rstrip('.')}"[:300]
    lines = (line.strip() for line in whole.splitlines() if line.strip())
    return LINK.sub(r"\g<shown>\g<place>", TIMES.sub("", next(lines, type(error).__name__)))[:300]
