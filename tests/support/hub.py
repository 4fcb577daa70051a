"""A stand-in for the Hugging Face Hub, for as much of its HTTP as `datasets` and `snapshot_download` use."""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
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
    """One repository, and what was asked of it.

    Args:
        files: of its first commit, to which its branch `main` points.
        kind: of the repository, datasets or models.
    """

    def __init__(self, files: Mapping[str, bytes], kind: str = "datasets") -> None:
        self.commits = {COMMIT: dict(files)}
        """The files of each commit."""
        self.main = COMMIT
        self.fetched: list[str] = []
        """Files in the order in which they were sent."""
        self.closed = set[str]()
        """Files that the server does not let anybody have."""
        self.requests = 0
        self.url = ""
        self._api, self._files = (f"/api/{kind}/{NAME}", f"{'' if kind == 'models' else f'/{kind}'}/{NAME}")

    def commit(self, files: Mapping[str, bytes]) -> str:
        """Add a commit with these files, and let `main` point to it."""
        self.main = hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()
        self.commits[self.main] = dict(files)
        return self.main

    def answer(self, method: str, url: str) -> tuple[int, bytes, dict[str, str]]:
        """Status, body and headers."""
        self.requests += 1
        asked = urlsplit(url)
        path = unquote(asked.path)
        if path.startswith(f"{self._files}/resolve/"):
            revision, _, name = path.removeprefix(f"{self._files}/resolve/").partition("/")
            return self._file(method, self._commit_of(revision), name)
        if path != self._api and not path.startswith(f"{self._api}/"):
            return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
        verb, _, rest = path.removeprefix(self._api).strip("/").partition("/")
        revision, _, folder = rest.partition("/")
        commit = self._commit_of(revision or "main")
        if commit is None:
            return 404, b"{}", {"X-Error-Code": "RevisionNotFound"}
        if verb == "tree":
            is_deep = parse_qs(asked.query).get("recursive", ["false"])[0].lower() == "true"
            return 200, json.dumps(_entries(self.commits[commit], folder, is_deep)).encode(), {}
        told = {"id": NAME, "sha": commit, "siblings": [{"rfilename": name} for name in self.commits[commit]]}
        return 200, json.dumps(told).encode(), {}

    def _commit_of(self, revision: str) -> str | None:
        return self.main if revision == "main" else revision if revision in self.commits else None

    def _file(self, method: str, commit: str | None, name: str) -> tuple[int, bytes, dict[str, str]]:
        if name in self.closed:
            return 403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Ask the owner for access."}
        if commit is None or name not in self.commits[commit]:
            return 404, b"", {"X-Error-Code": "EntryNotFound" if commit else "RevisionNotFound"}
        if method == "GET":
            self.fetched.append(name)
        content = self.commits[commit][name]
        return 200, content, {"ETag": f'"{_hash(content)}"', "X-Repo-Commit": commit}


def model_files(folder: Path) -> dict[str, bytes]:
    """The files of a model's folder, with a card and formats that a run does not load."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return files | {"README.md": b"# A model", "pytorch_model.bin": b"pickled", "onnx/model.onnx": b"a graph"}


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


def _entries(content: Mapping[str, bytes], folder: str, is_deep: bool) -> list[dict[str, Any]]:
    before = f"{folder}/" if folder else ""
    below = [name for name in content if name.startswith(before)]
    files = [name for name in below if is_deep or "/" not in name[len(before) :]]
    folders = {before + name[len(before) :].split("/")[0] for name in below if name not in files}
    return [{"type": "directory", "oid": "0", "size": 0, "path": name} for name in sorted(folders)] + [
        {"type": "file", "oid": _hash(content[name]), "size": len(content[name]), "path": name}
        for name in files
    ]


def _hash(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
