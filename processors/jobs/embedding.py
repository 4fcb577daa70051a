"""Models that embed texts: a local model, or an endpoint with OpenAI's embeddings API."""

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

SECONDS = 120.0  # timeout of the endpoint for one batch
UNUSABLE = (  # errors raised while parsing invalid answers
    OSError,
    http.client.HTTPException,
    ValueError,
    LookupError,
    TypeError,
    OverflowError,
    RecursionError,
)
MAX_MESSAGE = 200  # characters kept of an endpoint's error message


class Embedder(Protocol):
    """An embedding model."""

    made_by: Mapping[str, Any]
    """Properties of the model as JSON values, for `digest_of`."""

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return [texts, size] vectors of length 1.

        Raises:
            TrinityError: if embedding fails.
        """


class Local:
    """An embedding model in a folder, run in this process."""

    def __init__(self, folder: Path) -> None:
        from trinity_db.models.embedding import EmbeddingModel
        from trinity_db.models.folder_digest import digest

        self._model = EmbeddingModel(folder)
        self.made_by: Mapping[str, Any] = {"digest": digest(folder)}

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """See `Embedder.embed`."""
        return self._model.embed(texts)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Treat a redirect as an error: urllib would send the key to the host that it names."""

    def redirect_request(self, *request: Any) -> None:
        """Return None: no further request."""


class EmbeddingEndpoint:
    """An embedding model behind /v1/embeddings."""

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
        """See `Embedder.embed`."""
        # Most servers reject an empty text.
        body = json.dumps({"model": self._model, "input": [text or " " for text in texts]}).encode()
        try:
            reply = self._ask(body)
            rows = sorted(reply["data"], key=lambda row: int(row["index"]))
            with np.errstate(over="ignore"):  # overflow gives infinity, which is rejected below
                matrix = np.array([row["embedding"] for row in rows], np.float32)
        except UNUSABLE as error:
            raise TrinityError(f"{self._url}: {self._plain(str(error)) or type(error).__name__}") from error
        lengths = np.linalg.norm(matrix.astype(np.float64), axis=-1, keepdims=True)
        is_right = matrix.ndim == 2 and len(matrix) == len(texts)
        if not is_right or not np.isfinite(matrix).all() or not lengths.all():
            raise TrinityError(f"{self._url}: answered something other than one vector per text")
        return np.asarray(matrix / lengths, np.float32)

    def _ask(self, body: bytes) -> Any:
        """Return the server's answer.

        Raises:
            TrinityError: if it is an error or a redirect, whose target must not receive the key.
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
                message = f"redirects to {address}, which is not followed; set url to the final address"
            raise TrinityError(f"{self._url}: HTTP {error.code}: {self._plain(message)}") from error

    def _plain(self, text: str) -> str:
        """Return a text in one line, without the key, which some servers repeat."""
        if self._key:
            text = text.replace(self._key, "***")
        return " ".join(text.split())[:MAX_MESSAGE]


def digest_of(made_by: Mapping[str, Any]) -> str:
    """Return a digest that identifies a model and its vectors."""
    known = made_by.get("digest") or json.dumps([made_by["url"], made_by["model"]])
    return hashlib.sha256(str(known).encode()).hexdigest()
