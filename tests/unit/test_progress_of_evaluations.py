"""What `trinity-db evaluate` says while it is at work."""

import threading

import pytest

from trinity_db.cli.evaluate import _progress
from trinity_db.errors import TrinityError


@pytest.mark.filterwarnings("error")
def test_a_login_that_may_not_read_ends_no_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise TrinityError("This login may not read the store")

    raised: list[object] = []
    monkeypatch.setattr("trinity_db.postgres.opening.open_reader", refuse)
    monkeypatch.setattr(threading, "excepthook", raised.append)
    with _progress([1]):
        pass
    assert not raised
