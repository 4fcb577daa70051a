"""Remembers folders with embedded stores, to help commands that run in the wrong folder.

They are listed in `trinity-db/homes` below XDG_STATE_HOME, or ~/.local/state, most recently used last.
Nothing else depends on the file: if it cannot be written, it is skipped.
"""

import os
from contextlib import suppress
from pathlib import Path

KEPT = 20  # most folders that are remembered


def last_used() -> Path | None:
    """Return the folder of the most recently used store that still exists."""
    return next((home for home in reversed(_read()) if (home / "postgres").is_dir()), None)


def remember(home: Path) -> None:
    """Record that a folder's store is used now."""
    known = _read()
    if known and known[-1] == home:
        return
    lines = [str(path) for path in (*(path for path in known if path != home), home)][-KEPT:]
    with suppress(OSError, UnicodeError):
        path = _path()
        path.parent.mkdir(parents=True, exist_ok=True)
        aside = path.with_name(f"homes.{os.getpid()}")
        aside.write_text("".join(f"{line}\n" for line in lines))
        aside.replace(path)


def _read() -> list[Path]:
    try:
        return [Path(line) for line in _path().read_text().splitlines() if line]
    except (OSError, UnicodeError):
        return []


def _path() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "trinity-db" / "homes"
