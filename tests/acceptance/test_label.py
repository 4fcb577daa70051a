"""`trinity-db label` on a terminal, in a pipe and as files: keys, hostile texts, a session that is killed."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.command import COMMAND, Store, new_store
from tests.support.waiting import WAIT_SECONDS

WIDTH = 32
# Clears the screen, names the window, asks the terminal for an answer, turns the writing around.
HOSTILE = "\x1b[2J\x1b]0;mine\x07\x1b[6n\x9b31m\u202e\u2028\x7f\x08 the end"
STYLE = re.compile(r"\x1b\[[0-9;]*m")
SAID = "SELECT author, state::text, value, blind FROM label ORDER BY review_id, author"
PROMPT = "q:quit"


class Terminal:
    """A narrow terminal in which a person labels."""

    def __init__(self, store: Store, *arguments: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, WIDTH, 0, 0))
        self.theirs = theirs
        self.before = termios.tcgetattr(theirs)
        environment = store.environment | {"TERM": "xterm"}
        self.process = subprocess.Popen(
            [COMMAND, "label", *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
        )
        self.shown = ""

    def see(self, text: str) -> str:
        """Wait until it shows a text; what it showed since the last look, up to there."""
        deadline = time.monotonic() + WAIT_SECONDS
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            if select.select([self._ours], [], [], 0.2)[0]:
                self.shown += os.read(self._ours, 65536).decode()
        before, _, self.shown = self.shown.partition(text)
        return before + text

    def ask(self) -> str:
        """What it shows of a row, up to the keys."""
        return self.see(PROMPT)

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def end(self) -> int:
        return self.process.wait(WAIT_SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self.theirs)


@pytest.fixture
def store(server: str, template: str, tmp_path: Path) -> Iterator[Store]:
    """Three rows of the data set `said` that wait for verdicts; the second one is hostile."""
    with new_store(server, template, tmp_path) as store:
        rows = [
            {"prompt": f"prompt {n}", "response": text} for n, text in enumerate(("one", HOSTILE, "three"))
        ]
        store.import_rows("said", "trajectories", rows)
        ended = store.run("label", "said", "--ask", "true")
        assert ended.code == 0, ended.stderr
        yield store


@pytest.fixture
def terminals(store: Store) -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_single_keys_judge_rows_and_no_text_reaches_the_terminal_raw(
    store: Store, terminals: list[Terminal]
) -> None:
    terminals.append(terminal := Terminal(store, "said", "--by", "ann"))
    shown = terminal.ask()
    assert "one" in shown
    terminal.press("g")
    shown += terminal.ask()
    terminal.press("\x1b[A")  # an arrow is no key
    terminal.press("r")
    terminal.see("No rewards yet")
    terminal.press("b")
    shown += terminal.ask()
    terminal.press("u")
    shown += terminal.ask()
    terminal.press("s")
    terminal.ask()
    terminal.press("d")
    terminal.see("You judged everything")
    terminal.ask()
    terminal.press("u")  # the last verdict of the queue
    terminal.ask()
    terminal.press("d")
    terminal.see("You judged everything")
    terminal.ask()
    terminal.press("q")
    terminal.see("Verdicts: 3.")
    assert terminal.end() == 0
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    plain = STYLE.sub("", shown).replace("\r\n", "\n")
    assert all(character == "\n" or character.isprintable() for character in plain), repr(plain)
    assert "\\x1b[2J" in plain.replace("\n", "")
    assert max(map(len, plain.split("\n"))) <= WIDTH
    assert [tuple(row.values()) for row in store.rows(SAID)] == [
        ("ann", "submitted", 1, True),
        ("ann", "skipped", None, False),  # an undo does not make her forget the rewards
        ("ann", "discarded", None, True),
    ]
    assert store.value("SELECT reward FROM experience ORDER BY id LIMIT 1") == 1


def test_a_killed_session_gives_its_rows_back_and_the_person_goes_on(
    store: Store, terminals: list[Terminal]
) -> None:
    terminals.append(killed := Terminal(store, "said", "--by", "ann"))
    killed.ask()
    killed.press("g")
    killed.ask()
    store.wait_for("SELECT count(*) = 2 FROM label WHERE state = 'draft'")  # this row, and the next one
    killed.process.kill()
    killed.process.wait()
    waits = store.run("label", "said", "--by", "bob")
    assert "have nothing to judge" in waits.stdout
    store.rows("UPDATE label SET leased_until = now() WHERE state = 'draft' RETURNING id")
    terminals.append(terminal := Terminal(store, "said", "--by", "ann"))
    assert "the end" in terminal.ask()
    terminal.press("r")
    terminal.see("No rewards yet")  # it waits for keys, and holds this row and the next one
    assert store.value("SELECT count(*) FROM label WHERE leased_until >= now()") == 2
    terminal.process.send_signal(signal.SIGINT)  # Ctrl-C
    assert terminal.end() == 130
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    free = "SELECT count(*) FROM label WHERE leased_until >= now()"
    assert store.value(free) == 0, "what was not judged is free at once"
    assert store.value("SELECT count(*) FROM label WHERE state = 'submitted'") == 1


def test_without_a_terminal_each_line_is_a_key(store: Store) -> None:
    def label(lines: str) -> subprocess.CompletedProcess[str]:
        command = [str(COMMAND), "label", "said", "--by", "ann"]
        return subprocess.run(
            command, input=lines, capture_output=True, text=True, env=store.environment, timeout=WAIT_SECONDS
        )

    wrong = label("g\nwhat\n")
    assert wrong.returncode == 1
    assert "Line 2 of the input: 'what' is not a key; use one of: g, b, s, d, u, r, q" in wrong.stderr
    assert store.value("SELECT count(*) FROM label WHERE state = 'submitted'") == 1, "the first line stands"
    ended = label("b\nu\n\ng\nb\n")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "\x1b" not in ended.stdout
    assert "You judged everything that waited for you" in ended.stdout
    assert [row["value"] for row in store.rows(SAID)] == [1, 1, 0]
    assert "The last verdict was undone." in label("u\ng\n").stdout
    assert [row["value"] for row in store.rows(SAID)] == [1, 1, 1]
    closed = subprocess.run(
        ["sh", "-c", f"{COMMAND} label said --by ann <&-"],
        capture_output=True,
        text=True,
        env=store.environment,
        timeout=WAIT_SECONDS,
    )
    assert (closed.returncode, closed.stderr.count("\n")) == (1, 1), closed.stderr
    assert "Standard input is closed" in closed.stderr


def test_other_programs_get_the_queue_and_give_verdicts_back(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "tasks.json"
    assert store.run("label", "said", "--export", "label_studio", "--to", file).code == 0
    tasks = json.loads(file.read_text())
    for task in tasks:
        result = {"from_name": "verdict", "to_name": "response", "type": "choices"}
        result["value"] = {"choices": ["good"]}  # type: ignore[assignment]
        task["annotations"] = [
            {"completed_by": 10, "was_cancelled": False, "lead_time": 4.2, "result": [result]}
        ]
    file.write_text(json.dumps(tasks))
    imported = [store.run("label", "said", "--from", file).stdout for _ in range(2)]
    assert "3 verdicts are new, 0 changed, 0 already known" in imported[0]
    assert "0 verdicts are new, 0 changed, 3 already known" in imported[1]
    assert store.rows("SELECT DISTINCT author, value, seconds FROM label") == [
        {"author": "label_studio:10", "value": 1, "seconds": 4.2}
    ]
    empty = store.run("label", "said", "--export", "argilla")
    assert (empty.code, "Nothing of 'said' waits" in empty.stderr) == (1, True)
