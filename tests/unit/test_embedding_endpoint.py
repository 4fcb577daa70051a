"""An endpoint of embeddings that answers something else: one line, and its key goes nowhere else."""

import json
import socket
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from trinity_db.errors import TrinityError
from trinity_db.processors.jobs.embedding import EmbeddingEndpoint


@contextmanager
def server(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Its address, and what it is asked; it answers each time with these bytes, and closes."""
    asked: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                asked.append(connection.recv(1 << 16))
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def said(*embeddings: str) -> bytes:
    data = ", ".join(f'{{"index": {place}, "embedding": {one}}}' for place, one in enumerate(embeddings))
    return b"HTTP/1.1 200 OK\r\n\r\n" + f'{{"data": [{data}]}}'.encode()


def complaint(url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("KEY", "sk-secret")
    endpoint = EmbeddingEndpoint(url, "m", "KEY")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TrinityError) as raised:
            endpoint.embed(["a"])
    return str(raised.value)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
def test_a_redirect_is_named_and_the_key_is_not_sent_there(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(said("[1, 0]")) as (other, asked_other):
        redirect = f"HTTP/1.1 {code} Moved\r\nLocation: {other}/v2\r\nContent-Length: 0\r\n\r\n".encode()
        with server(redirect) as (url, asked):
            message = complaint(url, monkeypatch)
    assert message == (
        f"{url}/embeddings: HTTP {code}: redirects to {other}/v2, which is not followed;"
        " set url to the final address"
    )
    assert (len(asked), len(asked_other)) == (1, 0)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"what\r\n\r\n", "what"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n{", "IncompleteRead"),
        (
            b"HTTP/1.1 500 No\r\nContent-Length: 90\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            "IncompleteRead",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 200_000, "maximum recursion depth exceeded"),
        (said("[1e40, 1]"), "something other than one vector per text"),
        (said("[1" + "0" * 400 + ", 1]"), "too large"),
        (said("[NaN, 1]"), "something other than one vector per text"),
        (said("[0, 0]"), "something other than one vector per text"),
        (said("1"), "something other than one vector per text"),
        (said("[1]", "[1]"), "something other than one vector per text"),
    ],
)
def test_what_is_no_vector_is_one_line_without_a_warning(
    answer: bytes, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(answer) as (url, _):
        found = complaint(url, monkeypatch)
    assert found.startswith(f"{url}/embeddings: ")
    assert message in found
    assert "\n" not in found


def test_large_components_have_a_length_too(monkeypatch: pytest.MonkeyPatch) -> None:
    with server(said(json.dumps([3e38, 3e38]))) as (url, _), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = EmbeddingEndpoint(url, "m", None).embed(["a"])
    np.testing.assert_allclose(found, [[0.5**0.5, 0.5**0.5]], rtol=1e-6)
