"""Texts stay plain English: phrases that slow readers down are rare, and commit subjects are short."""

import ast
import io
import os
import re
import shutil
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import ROOT

MOST = 1.0  # per 1,000 words; code bases that read well have 0.3 to 0.9
SUBJECT = 72  # characters
PATTERNS = (
    # What it starts works on when the page ends. → Runs started from the page keep running.
    r"(?:^|[.:;] )What (?:it|is|was|others?|a|an|the|they|one|has|have|comes?|lies|stands|ends?)\b"
    r"(?![^.?\n]*\?)",
    # Of the row's pair; 0 where it has none. → Reward gap of the pair; 0 without a pair.
    r"^(?:Of|Those of|That of|By which|With which|From which)\b",
    # is no end of it → does not end it
    r"\b(?:is|are|was|were|be) no (?!longer\b|more than\b|less than\b)\w+|\bno more\b|\bis none\b",
    # goes on → continues; rows of before → existing rows
    r"\b(?:goes? on|going on|went on|go on|anew|once more|of before|as it stands|as they stand|as it was"
    r"|as they were|so do|comes? along)\b",
    # , as with spot machines → such as spot machines
    r", as (?:with|in|by|at|of|on|from|for)\b",
    # the file says → the file contains; a role hears → a role receives
    r"\b(?:says|said|tells|told|knows|hears|heard)\b",
    # the one that → repeat the noun; of its own → its own
    r"\b(?:that one|the one that|those that|one that|one of before|of its own|of their own)\b",
    # mend → fix; bear → tolerate; beside → next to; spoilt → corrupted
    r"\b(?:mends?|mended|mending|bears?|beside|besides|spoilt|stands? (?:in|at|on|for|before|behind)"
    r"|lies? (?:in|at|on|between|beside))\b",
)
STUMBLE = re.compile("|".join(f"(?:{pattern})" for pattern in PATTERNS), re.IGNORECASE | re.MULTILINE)
LEFT_OUT = {".git", "build", "dist", "tests"}


def test_texts_are_plain_english() -> None:
    words, found = 0, []
    for path in files():
        for text in texts(path):
            words += len(re.findall(r"[A-Za-z']+", text))
            found += [
                f"{path.relative_to(ROOT)}: …{text[max(0, match.start() - 30) : match.end() + 30]!r}…"
                for match in STUMBLE.finditer(text)
            ]
    rate = 1000 * len(found) / words
    assert rate <= MOST, f"{rate:.2f} per 1,000 words:\n" + "\n".join(found)


def test_a_text_of_the_old_kind_is_found() -> None:
    assert STUMBLE.search("What it starts works on when the page ends.")
    assert STUMBLE.search("Of the row's pair; 0 where it has none.")
    assert not STUMBLE.search("Runs started from the page keep running after it exits.")


def test_commit_subjects_are_short() -> None:
    if not (shutil.which("git") and (ROOT / ".git").exists()):
        pytest.skip("needs git and a clone")
    here = Path(__file__).relative_to(ROOT).as_posix()
    added = git("log", "--diff-filter=A", "--format=%H", "--", here)
    subjects = git("log", "--no-merges", "--format=%s", f"{added[-1]}..") if added else []
    assert [subject for subject in subjects if len(subject) > SUBJECT] == []


def files() -> Iterator[Path]:
    """Every file with prose, links left out."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(
            name
            for name in folders
            if name not in LEFT_OUT and not name.startswith(".") and "egg-info" not in name
        )
        for name in sorted(names):
            path = Path(folder, name)
            if path.suffix in (".md", ".py", ".sql") and not path.is_symlink() and name != "RESULTS.md":
                yield path


def texts(path: Path) -> Iterator[str]:
    """The prose of a file: Markdown without code; docstrings, comments, help and descriptions of settings."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        yield re.sub(r"`[^`\n]*`", "X", re.sub(r"```.*?```", " ", source, flags=re.DOTALL))
    elif path.suffix == ".sql":
        yield "\n".join(re.findall(r"--\s?(.*)", source))
    else:
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Expr) or (
                isinstance(node, ast.keyword) and node.arg in ("help", "description")
            ):
                yield from constant(node.value)
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                yield token.string.lstrip("# ")


def constant(node: ast.expr) -> Iterator[str]:
    """The text of a literal."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value


def git(*arguments: str) -> list[str]:
    """The lines that git prints."""
    # The clone may be another user's.
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
