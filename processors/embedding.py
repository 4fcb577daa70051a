"""What makes vectors of texts: a local model, or an endpoint that speaks OpenAI's embeddings."""

import hashlib
import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from trinity_db.errors import ConfigError, TrinityError

SECONDS = 120.0  # for an endpoint's answer about one batch
UNUSABLE = (  # what answers raise that are no vectors
    OSError,
    http.client.HTTPException,
    ValueError,
    LookupError,
    TypeError,
    OverflowError,
    RecursionError,
)
MAX_MESSAGE = 200  # characters of what an endpoint says about an error


class Embedder(Protocol):
    """A model that embeds."""

    made_by: Mapping[str, Any]
    """The model in JSON values, for `digest_of`."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """[texts, size] vectors of length 1.

        Raises:
            TrinityError: it cannot.
        """


class Local:
    """A model in a folder, in this process."""

    def __init__(self, folder: Path) -> None:
        from trinity_db.models.embedding import EmbeddingModel
        from trinity_db.models.folder_digest import digest

        self._model = EmbeddingModel(folder)
        self.made_by: Mapping[str, Any] = {"digest": digest(folder)}

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """As Embedder says."""
        return self._model.embed(texts)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error. urllib would send the key to the host that it names."""

    def redirect_request(self, *request: Any) -> None:
        """None: there is no further request."""


class Endpoint:
    """A model behind /v1/embeddings."""

    def __init__(self, url: str, model: str, key_env: str | None) -> None:
        self.made_by: Mapping[str, Any] = {"url": url, "model": model}
        self._url = f"{url.rstrip('/')}/embeddings"
        self._model = model
        self._key = os.environ.get(key_env) if key_env else None
        if key_env and not self._key:
            raise ConfigError(
                f"embed: the environment variable {key_env} is not set; it holds the key of the endpoint."
            )

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """As Embedder says."""
        # A text of nothing is an error to most servers.
        body = json.dumps({"model": self._model, "input": [text or " " for text in texts]}).encode()
        try:
            said = self._ask(body)
            rows = sorted(said["data"], key=lambda row: int(row["index"]))
            with np.errstate(over="ignore"):  # more than float32 holds is infinite, and refused below
                found = np.array([row["embedding"] for row in rows], np.float32)
        except UNUSABLE as error:
            raise TrinityError(f"{self._url}: {self._plain(str(error)) or type(error).__name__}") from error
        lengths = np.linalg.norm(found.astype(np.float64), axis=-1, keepdims=True)
        is_right = found.ndim == 2 and len(found) == len(texts)
        if not is_right or not np.isfinite(found).all() or not lengths.all():
            raise TrinityError(f"{self._url}: answers something other than a vector for each text")
        return np.asarray(found / lengths, np.float32)

    def _ask(self, body: bytes) -> Any:
        """What the server answers.

        Raises:
            TrinityError: an error, or another address, which might not be one for the key.
        """
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        request = urllib.request.Request(self._url, body, headers)
        try:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            message = error.read(1 << 16).decode(errors="replace")
            if 300 <= error.code < 400 and (address := error.headers.get("Location")):
                message = f"redirects to {address}, which is not followed; give the right address as url"
            raise TrinityError(f"{self._url}: HTTP {error.code}: {self._plain(message)}") from error

    def _plain(self, text: str) -> str:
        """A text in one line, and without the key, which some servers repeat."""
        if self._key:
            text = text.replace(self._key, "***")
        return " ".join(text.split())[:MAX_MESSAGE]


def digest_of(made_by: Mapping[str, Any]) -> str:
    """By which the vectors of two models are told apart."""
    known = made_by.get("digest") or json.dumps([made_by["url"], made_by["model"]])
    return hashlib.sha256(str(known).encode()).hexdigest()
