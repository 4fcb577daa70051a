"""Processes that tests began, or that such a process began."""

from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended, and that its parent did not ask about, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
