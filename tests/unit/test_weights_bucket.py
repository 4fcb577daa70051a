"""Addresses of object stores, and what servers of objects may answer: one line each, without a secret."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from trinity_db.config.base import validate
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.trainer.checkpoints import uploads
from trinity_db.trainer.config import TrainerConfig
from trinity_db.weights import bucket
from trinity_db.weights.bucket import Bucket, Refused, Unreachable

AWS = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "hunter2", "AWS_ALLOW_HTTP": "true"}
GOOGLE = {"GOOGLE_BEARER_TOKEN": "hunter2", "GOOGLE_ALLOW_HTTP": "true"}
AZURE = {
    "AZURE_STORAGE_ACCOUNT_NAME": "tests",
    "AZURE_STORAGE_ACCOUNT_KEY": "aHVudGVyMg==",
    "AZURE_ALLOW_HTTP": "true",
}


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
        (404, "ContainerNotFound", Refused),
        (409, "OperationAborted", Unreachable),
    ],
)
def test_an_answer_is_a_line_that_reads_the_same_each_time(
    server: Answering, status: int, code: str, kind: type[TrinityError]
) -> None:
    """Explorers say it once, and a trainer waits only for what may pass."""
    server.status, server.body = status, f"<Error>\n<Code>{code}</Code>\n<Message>It is\nso.</Message>"
    place = Bucket("s3://weights/run-1")
    for work in (lambda: place.get("a"), lambda: place.put("a", b""), lambda: place.names("a")):
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


@pytest.mark.parametrize(("code", "kind"), [("AccessDenied", Refused), ("InternalError", Unreachable)])
def test_a_deletion_may_fail_in_an_answer_that_all_is_well(
    server: Answering, code: str, kind: type[TrinityError]
) -> None:
    error = f"<Error><Key>run-1/a</Key><Code>{code}</Code><Message>It is so.</Message></Error>"
    server.status, server.body = 200, f"<DeleteResult>{error}</DeleteResult>"
    with pytest.raises(kind, match=rf"^s3://weights/run-1/a: .*: {code}, It is so"):
        Bucket("s3://weights/run-1").delete(["a"])


@pytest.mark.parametrize(
    ("address", "environment", "complaint"),
    [
        ("s3://weights", AWS | {"AWS_ENDPOINT_URL": "ENDPOINT"}, "the object store fails"),
        ("gs://weights", GOOGLE | {"GOOGLE_BASE_URL": "ENDPOINT"}, "the object store fails"),
        ("az://weights", AZURE | {"AZURE_STORAGE_ENDPOINT": "ENDPOINT"}, "the object store fails"),
        ("az://weights", AZURE | {"AZURE_STORAGE_ACCOUNT_KEY": "hunter2"}, "Key.* Check AZURE_"),
        ("az://weights", {}, "Account must be specified. Check AZURE_"),
        ("gs://weights", {"GOOGLE_SERVICE_ACCOUNT_KEY": "hunter2"}, "credential .* Check GOOGLE_"),
        ("gs://weights", {"GOOGLE_SERVICE_ACCOUNT": "/gone"}, "/gone: No such file .* Check GOOGLE_"),
    ],
)
def test_a_secret_of_the_environment_is_not_repeated(
    monkeypatch: pytest.MonkeyPatch, address: str, environment: dict[str, str], complaint: str
) -> None:
    monkeypatch.setattr(bucket, "RETRIES", 0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        endpoint = f"http://me:hunter2@127.0.0.1:{silent.getsockname()[1]}/?sig=hunter2"
        for name, value in environment.items():
            monkeypatch.setenv(name, value.replace("ENDPOINT", endpoint))
        with pytest.raises(ConfigError, match=complaint) as raised:
            uploads.check(address)
    assert "hunter2" not in str(raised.value)
    assert "\n" not in str(raised.value)


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
    objects, name = Bucket(f"file://{tmp_path}/{place}"), "version/files/a b (1)#%20ü+.json.00000"
    objects.put(name, b"content")
    assert objects.names() == objects.names("version") == [name]
    assert objects.get(name) == b"content"
    objects.delete([name])
    objects.delete([name])  # another process may have been faster
    assert list((tmp_path / place).rglob("*")) == []
