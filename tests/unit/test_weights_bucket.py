"""Addresses of object stores, and what servers of objects may answer: one line each, without a secret."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trinity_db.errors import ConfigError, TrinityError
from trinity_db.settings import validate
from trinity_db.trainer.checkpoints import uploads
from trinity_db.trainer.config import TrainerConfig
from trinity_db.weights.bucket import Bucket, Refused, Unreachable


class Answering(ThreadingHTTPServer):
    """A server that gives one answer to all requests of some methods, and else says that all is well."""

    daemon_threads = True
    status = 503
    body = ""
    methods: tuple[str, ...] = ("GET", "PUT", "POST")  # an object is deleted by POST


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Answering

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        fails = self.command in self.server.methods
        body = f"{self.server.body}<RequestId>{id(self)}</RequestId>" if fails else "<ListBucketResult/>"
        self.send_response(self.server.status if fails else 200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"one"')
        self.end_headers()
        self.wfile.write(body.encode())

    do_PUT = do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Answering]:
    with Answering(("127.0.0.1", 0), _Handler) as found:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{found.server_port}")
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-tests")
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (503, "SlowDown", Unreachable),
        (400, "RequestTimeout", Unreachable),
        (400, "ExpiredToken", Refused),
        (400, "AuthorizationHeaderMalformed", Refused),
        (403, "AccessDenied", Refused),
        (301, "PermanentRedirect", Refused),
        (404, "NoSuchBucket", Refused),
    ],
)
def test_an_answer_is_a_line_that_reads_the_same_each_time(
    server: Answering, status: int, code: str, kind: type[TrinityError]
) -> None:
    """Explorers say it once, and a trainer waits only for what may pass."""
    server.status, server.body = status, f"<Error>\n<Code>{code}</Code>\n<Message>It is\nso.</Message>"
    bucket = Bucket("s3://weights/run-1")
    for work in (lambda: bucket.get("a"), lambda: bucket.put("a", b""), lambda: bucket.names("a")):
        said = set[str]()
        for _ in range(2):
            with pytest.raises(kind) as raised:
                work()
            said.add(str(raised.value))
        (line,) = said
        assert line.startswith("s3://weights/run-1/a: ")
        assert "\n" not in line
        assert "secret-of-tests" not in line
        if kind is Unreachable:
            assert line.endswith(f"{code}, It is so")


def test_a_trainer_that_may_not_list_or_delete_hears_it_before_its_run_has_a_name(server: Answering) -> None:
    server.status, server.body = 403, "<Code>AccessDenied</Code><Message>No.</Message>"
    for method in ("PUT", "GET", "POST"):
        server.methods = (method,)
        with pytest.raises(ConfigError, match=r"^trainer.weights: .*403 Forbidden, AccessDenied, No\. Check"):
            uploads.check("s3://weights/versions")


@pytest.mark.parametrize(
    "address",
    [
        "s3://me:hunter2@weights/x",
        "s3://hunter2@weights/x",
        "s3:///me:hunter2@weights/x",
        "me:hunter2@weights/x",
        "s3:me:hunter2@weights",
        "https://account.blob.core.windows.net/container?sig=hunter2",
        "abfss://me:hunter2@account.dfs.core.windows.net/x",
        "s3://[hunter2/x",
        "s3://me:hunter2@weights/" + 1000 * "x",
        "memory:///hunter2",
        "s3://weights/hunter2\n",
    ],
)
def test_a_configuration_refuses_a_wrong_address_and_does_not_repeat_it(address: str) -> None:
    with pytest.raises(ConfigError, match=r"^run.yaml: weights: th") as raised:
        validate(TrainerConfig, {"weights": address}, "run.yaml")
    assert "hunter2" not in str(raised.value)
    with pytest.raises(ConfigError, match=r"^trainer.weights: th") as raised:
        Bucket(address)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    "address", ["s3://weights", "s3://weights/a@b", "file:///a b", "abfss://container@account/x", None]
)
def test_a_configuration_takes_other_addresses(address: str | None) -> None:
    assert validate(TrainerConfig, {"weights": address}, "run.yaml").weights == address


@pytest.mark.parametrize("place", ["a b", "ü", "a+b", "a&b", "50%"])
def test_a_folder_and_its_objects_may_have_odd_names(tmp_path: Path, place: str) -> None:
    bucket, name = Bucket(f"file://{tmp_path}/{place}"), "version/files/a b (1)#%20ü+.json.00000"
    bucket.put(name, b"content")
    assert bucket.names() == bucket.names("version") == [name]
    assert bucket.get(name) == b"content"
    bucket.delete([name])
    bucket.delete([name])  # another process may have been faster
    assert list((tmp_path / place).rglob("*")) == []
