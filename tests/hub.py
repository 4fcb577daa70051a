"""A stand-in for the Hugging Face Hub, for as much of its HTTP as `datasets` uses."""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NAME = "owner/tiny"
CARD = b"""---
configs:
- config_name: main
  data_files:
  - {split: train, path: main/train-*}
  - {split: test, path: main/test-*}
- config_name: other
  data_files:
  - {split: train, path: other/train-*}
---
"""


def parquet(**columns: list[Any]) -> bytes:
    """A Parquet file."""
    written = io.BytesIO()
    pq.write_table(pa.table(columns), written)
    return written.getvalue()


class Hub:
    """One data set with the branch `main`, and what was asked of it."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = dict(files)
        self.fetched: list[str] = []
        """Files in the order in which they were sent."""
        self.closed = set[str]()
        """Files that the server does not let anybody have."""
        self.url = ""

    def answer(self, method: str, url: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers."""
        asked = urlsplit(url)
        path = unquote(asked.path)
        if path.startswith(f"/api/datasets/{NAME}/tree/{COMMIT}"):
            folder = path.removeprefix(f"/api/datasets/{NAME}/tree/{COMMIT}").strip("/")
            is_deep = parse_qs(asked.query).get("recursive") == ["true"]
            return 200, json.dumps(self._entries(folder, is_deep)).encode(), {}
        if path in (
            f"/api/datasets/{NAME}",
            *(f"/api/datasets/{NAME}/revision/{one}" for one in ("main", COMMIT)),
        ):
            told = {"id": NAME, "sha": COMMIT, "siblings": [{"rfilename": name} for name in self.files]}
            return 200, json.dumps(told).encode(), {}
        if path.startswith(f"/datasets/{NAME}/resolve/"):
            name = path.removeprefix(f"/datasets/{NAME}/resolve/").partition("/")[2]
            return self._file(method, name)
        code = "RevisionNotFound" if path.startswith(f"/api/datasets/{NAME}/revision/") else "RepoNotFound"
        return 404, b"{}", {"X-Error-Code": code}

    def _entries(self, folder: str, is_deep: bool) -> list[dict[str, Any]]:
        before = f"{folder}/" if folder else ""
        below = [name for name in self.files if name.startswith(before)]
        files = [name for name in below if is_deep or "/" not in name[len(before) :]]
        folders = {before + name[len(before) :].split("/")[0] for name in below if name not in files}
        return [{"type": "directory", "oid": "0", "size": 0, "path": name} for name in sorted(folders)] + [
            {"type": "file", "oid": _hash(self.files[name]), "size": len(self.files[name]), "path": name}
            for name in files
        ]

    def _file(self, method: str, name: str) -> tuple[int, bytes, dict[str, str]]:
        if name in self.closed:
            return 403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Ask the owner for access."}
        if name not in self.files:
            return 404, b"", {"X-Error-Code": "EntryNotFound"}
        if method == "GET":
            self.fetched.append(name)
        return 200, self.files[name], {"ETag": f'"{_hash(self.files[name])}"', "X-Repo-Commit": COMMIT}


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub at its `url`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body, headers = hub.answer(self.command, self.path)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _hash(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
