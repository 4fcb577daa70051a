"""What README.md and docs/ show: every fenced block, with where it stands and what its language asks of it.

A block that cannot be checked says why, in a comment on the line above it: `<!-- not checked: REASON -->`.
A block whose first line is a comment with the name of a file, as `# my-run.yaml`, is that file.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
LINKED = [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CHANGELOG.md", ROOT / "benchmarks" / "README.md"]

_BLOCK = re.compile(
    r"^(?:<!-- not checked: (?P<reason>[^\n]+) -->\n)?"
    r"^(?P<indent> *)```(?P<language>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str
    reason: str | None
    """Why it is not checked; None: it is."""

    @property
    def file(self) -> str | None:
        """The name of the file that it is."""
        first = self.text.partition("\n")[0]
        named = re.fullmatch(r"# ([\w./-]+\.(?:yaml|py))", first)
        return named[1] if named else None

    @property
    def commands(self) -> list[list[str]]:
        """The commands of a shell block, each as its words, those of a pipe one by one."""
        found: list[list[str]] = []
        pending = ""
        for line in self.text.splitlines():
            pending += line
            if pending.endswith("\\"):
                pending = pending[:-1]
                continue
            words = _words(pending)
            if words is None:  # a quotation goes on
                pending += "\n"
                continue
            pending = ""
            found.extend(_commands(words))
        assert not pending, f"{self}: a quotation is not closed"
        return found

    @property
    def statements(self) -> list[str]:
        """The statements of an SQL block."""
        return [
            one.strip()
            for one in re.split(r";[ \t]*(?:--.*)?$", self.text, flags=re.MULTILINE)
            if one.strip()
        ]

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """All checked blocks of some languages; without any, all blocks."""
    found = [block for page in PAGES for block in of_page(page)]
    return [one for one in found if not languages or (one.language in languages and one.reason is None)]


def of_page(page: Path) -> Iterator[Block]:
    """The blocks of a page in their order."""
    text = page.read_text()
    for block in _BLOCK.finditer(text):
        line = text.count("\n", 0, block.start("language")) + 1
        content = re.sub(f"^{block['indent']}", "", block["text"], flags=re.MULTILINE)
        yield Block(page, line, block["language"], content, block["reason"])


def sql() -> list[tuple[str, list[str]]]:
    """The SQL that pages show, in blocks or as `trinity-db sql`: where it stands, and its statements."""
    found = [(f"{block}", block.statements) for block in blocks("sql")]
    for block in blocks("sh"):
        for command in block.commands:
            if command[:2] == ["trinity-db", "sql"] and command[2] != "-":
                found.append((f"{block}", [command[2]]))
        for file in re.findall(r"^trinity-db sql - .*<\s*(\S+)$", block.text, flags=re.MULTILINE):
            found.append((f"{block} {file}", [(ROOT / file).read_text()]))
    return found


def inline_commands() -> list[tuple[str, list[str]]]:
    """The commands of ours that stand within sentences, and where; a word in capitals stands for a number."""
    found = []
    for page in PAGES:
        text = _BLOCK.sub("", page.read_text())
        for command in re.findall(r"`trinity-db ([^`]+)`", text):
            words = [re.sub(r"^[A-Z]+$", "1", word) for word in shlex.split(command)]
            found.append((f"{page.relative_to(ROOT)}: {command}", words))
    return found


def _words(line: str) -> list[str] | None:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        return list(lexer)
    except ValueError:
        return None


def _commands(words: list[str]) -> Iterator[list[str]]:
    command: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set("|;&"):
            while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
                command = command[1:]
            if command:
                yield command
            command = []
        elif set(word) <= set("<>"):
            command.append(">")
        else:
            command.append(word)
