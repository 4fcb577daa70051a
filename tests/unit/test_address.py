"""No form of an address that libpq takes, and none that it refuses, shows a password."""

from pathlib import Path

import psycopg
import pytest

from trinity_db.errors import TrinityError
from trinity_db.postgres import address, backup, connection

# Each with pieces of a password that must not be seen. "Port 1" is closed on every machine.
FORMS: dict[str, tuple[str, ...]] = {
    "postgresql://me:hunter@127.0.0.1:1/x": ("hunter",),
    "postgres://me:hunter@127.0.0.1:1/x": ("hunter",),
    "postgresql://me:h%75nter%40home@127.0.0.1:1/x": ("hunter", "h%75nter", "home"),
    "postgresql://me:hun:ter@127.0.0.1:1/x": ("hun:ter", "ter@"),
    "postgresql://:hunter@127.0.0.1:1/x": ("hunter",),
    "postgresql://127.0.0.1:1/x?user=me&password=hunter": ("hunter",),
    "postgresql://127.0.0.1:1/x?password=h%75nter": ("hunter", "h%75nter"),
    "postgresql://127.0.0.1:1/x?sslpassword=hunter&sslkey=safe": ("hunter", "safe"),
    "postgresql://127.0.0.1:1/x?passfile=/home/hunter": ("hunter",),
    "postgresql://me:hunter@[::1]:1/x": ("hunter",),
    "postgresql://me:hunter@127.0.0.1:1,127.0.0.1:2/x": ("hunter",),
    "postgresql://me:hunter@/x?host=/nowhere&port=1": ("hunter",),
    "postgresql://me:hunter@%2Fnowhere:1/x": ("hunter",),
    "postgresql://me:hun?ter#1@127.0.0.1:1/x": ("hun", "ter#"),
    "postgresql://me:hun\nter@127.0.0.1:1/x": ("hun", "ter@"),
    "host=127.0.0.1 port=1 user=me password=hunter": ("hunter",),
    "host = 127.0.0.1 port = 1 password = hunter": ("hunter",),
    "host=127.0.0.1 port=1 password='hunter two'": ("hunter", "two"),
    r"host=127.0.0.1 port=1 password='hun\'ter two'": ("hun", "ter two"),
    r"host=127.0.0.1 port=1 password=hunter\ two": ("hunter", "two"),
    "hostaddr=127.0.0.1 port=1 password=hunter sslpassword=safe passfile=/home/hunter": ("hunter", "safe"),
    "dbname=postgresql://me:hunter@127.0.0.1:1/x host=127.0.0.1 port=1": ("hunter",),
    # A password whose special characters were not quoted: parts of it look like hosts, ports and keys.
    "postgresql://me:hun@ter@127.0.0.1:1/x": ("hun", "ter@"),
    "postgresql://me:1/hunter@127.0.0.1:1/x": ("hunter",),
    "postgresql://me:hun/ter@127.0.0.1:1/x": ("hun", "ter@"),
    "postgresql://me:hun/t?er@127.0.0.1:1/x": ("hun", "t?er", "er@"),
    "postgresql://me:hun%zzter@127.0.0.1:1/x": ("hun", "zzter"),
    "postgresql://127.0.0.1:1/x?password=hun&ter=2": ("hun", "ter=", '"ter'),
    "postgresql://127.0.0.1:1/x?password=hun@ter": ("hun", "@ter"),
    "postgresql://127.0.0.1:1/x?password=hun%zzter": ("hun", "zzter"),
    "postgresql://127.0.0.1:1/x?password=a=hunter": ("hunter",),
    "postgresql://127.0.0.1:hunter/x": ("hunter",),
    "postgresql://me:hunter@[::1/x": ("hunter",),
    "postgresql://me:hunter@[]:1/x": ("hunter",),
    "postgresql://me:hunter@127.0.0.1:port/x": ("hunter",),
    "postgresql://me:hunter@127.0.0.1:1/x?unknown=1": ("hunter",),
    "postgresql://me:hunter@127.0.0.1:1/x?sslmode=hunter": ("hunter",),
    "postgresql://me:hunter@127.0.0.1:1/x?sslmode=mine": ("hunter",),
    'postgresql://me:hun"ter@[::1/x': ("hun", "ter@"),
    " postgresql://me:hunter@127.0.0.1:1/x": ("hunter",),
    "postgresql:/me:hunter@127.0.0.1:1/x": ("hunter",),
    "postgresql//me:hunter@127.0.0.1:1/x": ("hunter",),
    "jdbc:postgresql://127.0.0.1:1/x?password=hunter": ("hunter",),
    "host=127.0.0.1 port=1 password=hun ter": ("hun", "ter "),
    "host=127.0.0.1 port=1 password=hun ter=2": ("hun", '"ter'),
    "host=127.0.0.1 port=1 password='hunter": ("hunter",),
    "host=127.0.0.1 port=1 password='hunter' 'two": ("hunter", "two"),
    "host=me:hunter@127.0.0.1 port=1": ("hunter",),
    "hunter": ("hunter",),
    "postgresql://me:hunter\udcff@127.0.0.1:1/x": ("hunter",),
}


@pytest.mark.parametrize(("given", "secrets"), FORMS.items(), ids=map(ascii, FORMS))
def test_no_error_shows_a_password(
    given: str, secrets: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 2)
    with pytest.raises(TrinityError) as caught:
        connection.connect(given)
    said = [str(caught.value), address.shown(given)]
    assert [secret for secret in secrets if any(secret in text for text in said)] == []
    assert caught.value.__cause__ is None, "a traceback would print what libpq said"
    assert len(said[0].splitlines()) == 1


@pytest.mark.parametrize("given", ["postgresql:/me:hunter@127.0.0.1:1/x", "host=h password='hunter"])
def test_a_backup_from_a_malformed_address_shows_no_password(given: str, tmp_path: Path) -> None:
    with pytest.raises(TrinityError) as caught:
        backup.backup(given, tmp_path / "store.dump")
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("postgresql://127.0.0.1:1/nowhere", "postgresql://127.0.0.1:1/nowhere"),
        ("postgresql://me:hunter@h:1/x?sslmode=require", "postgresql://me:***@h:1/x"),
        ("host=h port=1 user=me password='a b' dbname=x", "postgresql://me:***@h:1/x"),
        ("postgresql:///x?host=/tmp/s&user=me", "postgresql://me@/x?host=/tmp/s"),
        ("postgresql://me@[::1]:1,h:2/x", "postgresql://me@[::1]:1,h:2/x"),
        ("host=a,b port=1 dbname=x", "postgresql://a:1,b:1/x"),
        ("hostaddr=127.0.0.1 dbname=x", "postgresql://127.0.0.1/x"),
        ("service=mine", "postgresql:///?service=mine"),
        ("postgresql://me:hun@ter@h/x", address.UNCLEAR),
        ("host", address.UNCLEAR),
    ],
)
def test_an_address_is_shown_as_a_url(given: str, shown: str) -> None:
    assert address.shown(given) == shown


def test_what_libpq_keeps_to_itself_is_a_secret() -> None:
    assert {"password", "sslpassword"} <= address.SECRETS
    assert "user" not in address.SECRETS


def test_a_malformed_address_says_how_to_write_it() -> None:
    with pytest.raises(TrinityError, match=r"invalid percent-encoded token: .*write @ .* as %40"):
        connection.connect("postgresql://me:100%zz@h/x")


def test_what_a_server_says_of_a_clear_address_is_kept() -> None:
    said = psycopg.OperationalError('connection to server at "h", port 1 failed: FATAL:  no\nmore')
    assert address.reason(said, "postgresql://me:hunter@h:1/x").endswith('"h", port 1 failed: FATAL:  no')
