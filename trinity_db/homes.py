"""Remembers which folders had an embedded store, for a command that runs in the wrong folder by mistake.

They stand in `trinity-db/homes` below XDG_STATE_HOME, or ~/.local/state, the one used last at the end.
Nothing else depends on the file: where it cannot be written, it is left out.
"""

import os
from contextlib import suppress
from pathlib import Path

KEPT = 20  # folders


def last_used() -> Path | None:
    """The folder of the store that was used last and is still there."""
    return next((home for home in reversed(_read()) if (home / "postgres").is_dir()), None)


def remember(home: Path) -> None:
    """Note that a folder's store is used now."""
    known = _read()
    if known and known[-1] == home:
        return
    lines = [str(one) for one in (*(one for one in known if one != home), home)][-KEPT:]
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
