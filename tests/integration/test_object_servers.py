"""The requests that versions are made of, on each server that there is: what it does, and what it refuses."""

import base64
import os
import signal
import subprocess
import sys
import urllib.parse
from collections.abc import Callable

import pytest

from tests.support.object_store import AZURE, ObjectStore, on_azure, on_each_server, token_of_azure
from tests.support.waiting import wait_until
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.trainer.checkpoints import uploads
from trinity_db.trainer.checkpoints.retrying_bucket import Patience
from trinity_db.weights import bucket
from trinity_db.weights.bucket import Bucket, Missing, NoBucket, Refused, Unreachable
from trinity_db.weights.manifest import OWNER_FILE

NAME = "version/files/a b (1)#%20ü+&.json.00000"


def requests(place: Bucket) -> list[Callable[[], object]]:
    """One of each kind, but deletions."""
    return [
        lambda: place.put("a", b""),
        lambda: place.create("a", b""),
        lambda: place.get("a"),
        lambda: place.names("a"),
        place.names,
    ]


def said(work: Callable[[], object], kind: type[TrinityError]) -> str:
    """What a request that fails says, twice the same."""
    found = set[str]()
    for _ in range(2):
        with pytest.raises(kind) as raised:
            work()
        found.add(str(raised.value))
    (line,) = found
    assert "\n" not in line
    return line


@on_each_server
def test_an_object_is_put_listed_and_deleted(objects: ObjectStore) -> None:
    place = Bucket(objects.address)
    for content in (b"content", b"", bytes(3_000_000)):
        place.put(NAME, content)
        assert place.get(NAME) == content
    place.put("version-2/files/a", b"")
    assert place.names() == sorted([NAME, "version-2/files/a"])
    assert place.names("version") == [NAME], "a prefix ends where a part of the name does"
    place.delete([NAME])
    place.delete([NAME])  # another process may have been faster
    assert place.names("version") == []
    with pytest.raises(Missing):
        place.get(NAME)


@pytest.mark.parametrize("server_of_objects", ["s3", AZURE], indirect=True)
def test_an_object_is_created_once(objects: ObjectStore) -> None:
    place = Bucket(objects.address)
    assert place.create("a", b"one")
    assert place.create("a", b"one"), "as when an answer is lost, and the request repeated"
    assert not place.create("a", b"another")
    assert place.get("a") == b"one"
    identity = {"store": "one", "run": 1}
    uploads.Uploads(objects.address, identity, "run", Patience(lambda: False))
    (owner,) = (name for name in objects.names() if name.endswith(OWNER_FILE))
    place.put(owner, b"another run")
    with pytest.raises(ConfigError, match="names another run; use another address"):
        uploads.Uploads(objects.address, identity, "run", Patience(lambda: False))


@on_each_server
def test_a_bucket_that_is_not_there_is_named_at_once(objects: ObjectStore) -> None:
    address = objects.address.replace("weights", "no-such-bucket")
    for work in requests(Bucket(address)):
        assert said(work, NoBucket).endswith(
            ": there is no such bucket or container; make it, or name another."
        )
    with pytest.raises(ConfigError, match=r"^trainer.weights: .* there is no such bucket"):
        uploads.check(address)
    assert uploads.clear(address, {}), "its objects went with it"


@on_each_server
def test_a_server_that_is_away_may_come_back(objects: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "RETRIES", 0)
    place = Bucket(objects.address)
    objects.go_away()
    for work in (*requests(place), lambda: place.delete(["a"])):
        assert "the object store fails: " in said(work, Unreachable)
    objects.come_back()
    uploads.check(objects.address)
    assert objects.names() == []


@on_azure
def test_a_wrong_key_is_refused_and_not_repeated(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, complaint in (
        (base64.b64encode(b"another key").decode(), r"az://.* refuses it: 403 .* Check the credentials"),
        ("no base64", r"az://.* Invalid Access Key: .* Check AZURE_\* in the environment"),
    ):
        with monkeypatch.context() as here:
            here.setenv("AZURE_STORAGE_ACCOUNT_KEY", key)
            with pytest.raises(ConfigError, match=complaint) as raised:
                uploads.check(objects.address)
            assert key not in str(raised.value)
            if "403" in complaint:
                for work in requests(Bucket(objects.address)):
                    said(work, Refused)


@on_azure
@pytest.mark.parametrize("lacks", ["w", "d", "l"])
def test_a_token_without_a_right_is_refused_before_the_run_has_a_name(
    objects: ObjectStore, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    with monkeypatch.context() as here:
        here.delenv("AZURE_STORAGE_ACCOUNT_KEY")
        here.setenv("AZURE_STORAGE_SAS_TOKEN", token_of_azure("rwdl"))
        uploads.check(objects.address)
        token = token_of_azure("rwdl".replace(lacks, ""))
        here.setenv("AZURE_STORAGE_SAS_TOKEN", token)
        (signature,) = urllib.parse.parse_qs(token)["sig"]
        with pytest.raises(ConfigError, match=r"refuses it: 403.* Check the credentials") as raised:
            uploads.check(objects.address)
        assert signature[:8] not in str(raised.value)


def test_ctrl_c_ends_a_request_that_hangs(objects: ObjectStore) -> None:
    objects.fall_silent()
    script = (
        "from trinity_db.trainer.checkpoints import uploads\n"
        f"print('asks', flush=True)\nuploads.check({objects.address!r})"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as asking:
        assert asking.stdout is not None
        assert asking.stdout.readline() == "asks\n"
        wait_until(objects.is_asked, "a connection")
        os.kill(asking.pid, signal.SIGINT)
        assert "KeyboardInterrupt" in asking.communicate(timeout=60)[1]
