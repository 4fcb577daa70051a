"""The objects of one run in an object store: S3, Google, Azure, or a folder that a file:// address names.

Each object is put by one request, and so appears whole or not at all. A crash leaves no upload that a store
keeps, and bills, without listing it.
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
from trinity_db.weights import at_once

Result = TypeVar("Result")

EXTRA = "object-store"
REQUEST_SECONDS = 120  # of one request; the largest object has PART_BYTES, so a line of 2 Mbit/s is enough
CONNECT_SECONDS = 5
RETRIES = 3  # by the library, of one request, within RETRY_SECONDS
RETRY_SECONDS = 10
CONTAINERS = ("abfs", "abfss")  # these name a container before the @
# How those variables of the environment begin that the library reads, by the scheme of an address.
VARIABLES = {"s3": "AWS", "s3a": "AWS", "gs": "GOOGLE"} | dict.fromkeys(
    ("az", "azure", "adl", *CONTAINERS), "AZURE"
)
MAX_OBJECT_BYTES = 256 << 20  # that is read into memory
PART_BYTES = 32 << 20  # of an object: several are on their way at a time, each in memory

# What the library says of an answer: its status, and then the server's document, which has the same form in
# S3, Google and Azure. Azure's text goes on with number and time of the request.
ANSWER = re.compile(
    r"(status code: (?P<status>\d+ [^:]*)|error response)"
    r"(:.*?<Code>(?P<code>[^<]*)</Code>(.*?<Message>(?P<text>[^<]*?)(\s+RequestId:[^<]*)?<)?)?",
    re.DOTALL,
)
# Of several deletions in a request each has an answer of its own.
DELETION = re.compile(r"request failed for key .*?: (?P<text>[^\n]*) \(code: (?P<code>\w+)\)")
# An address in what the library says: it may hold a login, or a signature.
LINK = re.compile(r"(?P<shown>\bhttps?://)([^\s/@]*@)?(?P<place>[^\s?]*)(\?\S*)?")
TIMES = re.compile(r" in [\d.]+(ns|µs|ms|s)(?=[ ,])")  # two failures of one kind must read the same
CREDENTIALS = "Check the credentials and the region in the environment, and their rights."
NO_CREDENTIALS = "169.254.169.254"  # where the library asks for credentials if the environment has none
NO_BUCKET = re.compile(r"\b(NoSuchBucket|ContainerNotFound)\b")
# What the library takes for failures that may pass, in lists of objects too: statuses, and codes of servers.
REFUSALS = re.compile(
    r"(301|401|403|AccessDenied)\b"
    r"|400\b.*, (ExpiredToken|InvalidToken|AuthorizationHeaderMalformed|InvalidResourceName)\b"
)


class Unreachable(TrinityError):
    """The object store does not answer, or fails. It may answer later."""


class Refused(TrinityError):
    """The object store answers that these credentials may not do this, or that there is no such bucket."""


class NoBucket(Refused):
    """The object store answers that there is no such bucket, and so none of its objects."""


class Missing(TrinityError):
    """There is no such object."""


class TooLarge(TrinityError):
    """An object has more bytes than are read into memory."""


class Bucket:
    """The objects under one address.

    Args:
        url: the address, such as s3://bucket/prefix.

    Raises:
        ConfigError: it is no address of an object store, or its settings are wrong.
        MissingExtra: the package is not installed.
    """

    def __init__(self, url: str) -> None:
        try:
            check(url)
        except ValueError as error:
            raise ConfigError(f"trainer.weights: {error}") from error
        self.url = url.rstrip("/")
        self._library = _library()
        # Folders of a file:// address go with the last file in them, as prefixes of other stores do.
        is_folder = urlsplit(url).scheme == "file"
        variables = VARIABLES.get(urlsplit(url).scheme)
        options = {"mkdir": True, "automatic_cleanup": True} if is_folder else _options(variables)
        try:
            self._store = self._library.store.from_url(self.url, **options)
        except (self._library.exceptions.BaseError, ValueError, TypeError, OSError) as error:
            advice = f". Check {variables}_* in the environment." if variables else ""
            raise ConfigError(f"trainer.weights: {url}: {_line(error).rstrip('.')}{advice}") from error

    def put(self, name: str, content: bytes) -> None:
        """Write an object, in place of one of that name."""
        self._ask(name, lambda: self._library.put(self._store, name, content, use_multipart=False))

    def create(self, name: str, content: bytes) -> bool:
        """Write an object unless there is one of that name. Return whether it has this content now.

        An answer may be lost, and the request repeated: then the object is there already.
        """

        def put() -> bool:
            try:
                self._library.put(self._store, name, content, mode="create", use_multipart=False)
            except self._library.exceptions.AlreadyExistsError:
                return False
            return True

        return self._ask(name, put) or self.get(name) == content

    def get(self, name: str, most: int = MAX_OBJECT_BYTES) -> bytes:
        """The content of an object.

        Raises:
            Missing: there is none.
            TooLarge: it has more than `most` bytes. Nothing of it is read.
        """

        def read() -> bytes:
            found = self._library.get(self._store, name)
            if found.meta["size"] > most:
                raise TooLarge(
                    f"{self.url}/{name}: has {found.meta['size']:,} bytes; at most {most:,} are read."
                )
            return bytes(found.bytes())

        return self._ask(name, read)

    def names(self, prefix: str | None = None) -> list[str]:
        """The names of all objects below a prefix, which ends where a part of the name does."""

        def listed() -> list[str]:
            return [one["path"] for some in self._library.list(self._store, prefix) for one in some]

        return self._ask(prefix or "its objects", listed)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects. Those that are gone already are no error."""
        for name in names:  # one by one: not every store takes several in a request
            with suppress(Missing):
                self._ask(name, partial(self._library.delete, self._store, name))

    def _look(self) -> None:
        """What `_ask` calls while a request is on its way. An error that it raises gives the request up."""

    def _ask(self, name: str, request: Callable[[], Result]) -> Result:
        """Make a request of the library, and say in our words what failed."""
        known = self._library.exceptions
        what = f"{self.url}/{name}"
        try:
            return at_once.apart(request, self._look)
        except (known.BaseError, OSError) as error:
            said = _line(error)
            if NO_BUCKET.search(said):
                raise NoBucket(
                    f"{what}: there is no such bucket or container; make it, or name another."
                ) from error
            if isinstance(error, known.NotFoundError | FileNotFoundError):
                raise Missing(f"{what}: there is no such object.") from error
            if NO_CREDENTIALS in said:
                raise Unreachable(f"{what}: the environment has no credentials: {said}") from error
            if isinstance(error, known.PermissionDeniedError | known.UnauthenticatedError):
                raise Refused(f"{what}: the object store refuses it: {said}. {CREDENTIALS}") from error
            if REFUSALS.match(said) or "configured region" in said:
                raise Refused(f"{what}: the object store refuses it: {said}. {CREDENTIALS}") from error
            raise Unreachable(f"{what}: the object store fails: {said}") from error


def _options(variables: str | None) -> dict[str, Any]:
    """For stores that are servers. Options of ours replace all that the environment says of the client.

    Args:
        variables: how those of the environment begin. None: this kind of address has none, and needs TLS.
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
    """Refuse an address that holds a secret: rows of the store repeat it, and so do messages.

    Raises:
        ValueError: it does, or is none. The message does not repeat it.
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
        raise ValueError("this is no address of an object store, as s3://bucket/prefix is.")


def _library() -> Any:
    try:
        importlib.import_module("obstore.store")
        importlib.import_module("zstandard")
        return importlib.import_module("obstore")
    except ModuleNotFoundError as error:
        raise MissingExtra(EXTRA, error.name or "obstore") from error


def _line(error: Exception) -> str:
    """What the server answered, or else the first line of what the library says.

    The library goes on with the request and all its causes.
    """
    whole = str(error)
    if (answer := ANSWER.search(whole)) is not None and NO_CREDENTIALS not in whole:
        said = [(answer[part] or "").strip().rstrip(".") for part in ("status", "code", "text")]
        return " ".join(", ".join(filter(None, said)).split())[:300]
    if (deletion := DELETION.search(whole)) is not None:
        return f"{deletion['code']}, {deletion['text'].rstrip('.')}"[:300]
    lines = (line.strip() for line in whole.splitlines() if line.strip())
    return LINK.sub(r"\g<shown>\g<place>", TIMES.sub("", next(lines, type(error).__name__)))[:300]
