"""Records the modules that the processes of roles import, each when its import begins."""

from pathlib import Path

ROLES = ("explore", "process", "train")

# Python imports `sitecustomize` at its start. A process may end without its exit handlers.
HOOK = """
import os, sys
role = next((word for word in sys.orig_argv if word in {roles!r}), None)
if role is not None:
    target = os.open(os.path.join({folder!r}, role), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(event, arguments):
        if event == "import":
            os.write(target, (arguments[0] + "\\n").encode())

    sys.addaudithook(note)
"""


class ImportedModules:
    """The imports of roles that are started with the folder in their PYTHONPATH.

    Args:
        folder: an empty folder for the hook and its records.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(HOOK.format(roles=ROLES, folder=str(folder)))

    def of(self, role: str) -> set[str]:
        """Return the names of the modules that a role has begun to import."""
        return set((self.folder / role).read_text().splitlines())
