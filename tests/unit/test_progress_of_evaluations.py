"""What `trinity-db evaluate` says while it is at work."""

import threading
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from tests.support.waiting import wait_until
from trinity_db.cli import evaluate
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


def test_a_line_is_printed_when_attempts_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = [0, 0, 0, 3, 3, 4]
    reads = iter(counts)
    reader = SimpleNamespace(transaction=lambda read_only: nullcontext(), close=lambda: None)
    monkeypatch.setattr("trinity_db.postgres.opening.open_reader", lambda: reader)
    monkeypatch.setattr("trinity_db.store.evaluations.progress", lambda tx, ids: (next(reads, counts[-1]), 4))
    monkeypatch.setattr(evaluate, "LINE_SECONDS", 0.001)
    lines: list[str] = []

    def end_is_printed() -> bool:
        lines.extend(capsys.readouterr().err.splitlines())
        return "4 of 4 attempts" in " ".join(lines)

    with _progress([1]):
        wait_until(end_is_printed, "the last attempt is reported")
    lines.extend(capsys.readouterr().err.splitlines())
    assert [line.partition(" attempts")[0] for line in lines] == ["0 of 4", "3 of 4", "4 of 4"]
