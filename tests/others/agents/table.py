"""The table of agents in docs/guides/programs.md."""

import re
from pathlib import Path

from tests.others.agents.training import Outcome

PAGE = Path(__file__).parents[3] / "docs" / "guides" / "programs.md"
PINS = Path(__file__).parent
ROW = re.compile(r"^\| ([^|]+) \| `(\S+) (\S+)` \| ([^|]+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
"""Name, package and version, replaced options, sequences, rows that are trained."""


def agents() -> dict[str, tuple[str, str, Outcome]]:
    """Each agent's package and version, and what becomes of an attempt."""
    return {
        name: (
            package,
            version,
            Outcome(sorted(re.findall(r"`([^`]+)`", replaced)), int(sequences), int(rows)),
        )
        for name, package, version, replaced, sequences, rows in ROW.findall(PAGE.read_text())
    }


def documented(agent: str) -> Outcome:
    _, _, outcome = agents()[agent]
    return outcome


def pins() -> set[tuple[str, str]]:
    """Packages with versions that the environments of agents have."""
    found = set()
    for path in PINS.glob("*.txt"):
        for line in path.read_text().splitlines():
            if not line.startswith("#") and (pinned := re.fullmatch(r"(.+?)(?:==|@)([^@\s]+)", line)):
                found.add((pinned[1], pinned[2]))
    return found
