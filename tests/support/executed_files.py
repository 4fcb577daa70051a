"""Counts the files of the project that a plain GRPO run executes: `python -m tests.support.executed_files`.

A run of a few steps with a scratch model and the engine transformers. A file counts if one of its functions
is called in a process of a role; module and class bodies, which an import executes, do not count.
Configuration (`config.py`, trinity_db/config, trinity_db/run), command line and embedded server are left out.
`--files` also prints the files.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.acceptance.command import Store, reversals, reversing
from tests.support.postgres import cluster_18, discard, execute, on_database, start
from trinity_db.postgres import opening

ROOT = Path(__file__).resolve().parents[2]
ROLES = ("explore", "process", "train")
LEFT_OUT = ("trinity_db/config/", "trinity_db/run/", "trinity_db/cli/", "trinity_db/postgres/embedded/")
STEPS = 6

# Python imports `sitecustomize` at its start. A file is noted when its first function is called, since a
# process may end without its exit handlers. The flag 1 (CO_OPTIMIZED) tells functions from other code.
HOOK = """
import os, sys, threading
role = next((word for word in sys.orig_argv if word in {roles!r}), None)
if role is not None:
    known = set()
    target = os.open(os.path.join({folder!r}, role), os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_flags & 1 and code.co_filename not in known:
            known.add(code.co_filename)
            os.write(target, (code.co_filename + "\\n").encode())

    threading.setprofile(note)
    sys.setprofile(note)
"""


@contextmanager
def new_store(folder: Path) -> Iterator[Store]:
    """Yield a store on a server of its own, with tasks."""
    cluster = cluster_18()
    try:
        server = start(cluster)
        execute(server, "CREATE DATABASE executed")
        url = on_database(server, "executed")
        opening.upgrade(url)
        store = Store(url, folder)
        try:
            store.import_rows("reverse", "tasks", reversals(2))
            yield store
        finally:
            store.clear_away()
    finally:
        discard(cluster)


def executed(steps: int = STEPS) -> dict[str, set[str]]:
    """Return the executed files by role, as paths from the root of the project."""
    with tempfile.TemporaryDirectory() as name, new_store(Path(name)) as store:
        for part in ("hook", "found"):
            (store.folder / part).mkdir()
        found = store.folder / "found"
        hook = HOOK.format(roles=ROLES, folder=str(found))
        (store.folder / "hook" / "sitecustomize.py").write_text(hook)
        config = store.config("executed", **reversing(steps, 4))
        ended = store.run("run", config, PYTHONPATH=str(store.folder / "hook"))
        assert ended.code == 0, ended.stderr
        return {role: _counted((found / role).read_text().splitlines()) for role in ROLES}


def _counted(names: list[str]) -> set[str]:
    paths = (Path(name).resolve() for name in names if not name.startswith("<"))
    files = {path.relative_to(ROOT).as_posix() for path in paths if path.is_relative_to(ROOT)}
    return {
        file
        for file in files
        if not file.startswith((".venv/", *LEFT_OUT)) and not file.endswith("/config.py")
    }


def main() -> None:
    """Print the counts, for all roles together and for each."""
    by_role = executed()
    for title, files in {"all roles": set().union(*by_role.values()), **by_role}.items():
        folders = {file.rpartition("/")[0] for file in files}
        lines = sum(len((ROOT / file).read_text().splitlines()) for file in files)
        print(f"{title}: {len(files)} files in {len(folders)} folders, {lines:,} lines")
        if "--files" in sys.argv and title != "all roles":
            print("".join(f"  {file}\n" for file in sorted(files)), end="")


if __name__ == "__main__":
    main()
