"""The package as others get it: built, then installed with nothing but its declared dependencies."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import trinity_db
from tests.support.postgres import by_login, new_database

Command = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(trinity_db.__file__).parent.parent
BARE_NAMES = ("explorer", "processors", "schema", "trainer", "tests", "configs")
HELP_SECONDS = 0.5
OFFLINE = """
name: offline
model: {scratch: {}}
data: [set]
algorithm: sft
"""
ARCHIVING = """
name: archiving
model: {scratch: {}}
taskset: sums
algorithm: grpo
trainer: {steps: 1}
processors: {archive: {}}
"""
ONLINE = """
name: online
model: {scratch: {}}
taskset: tasks
algorithm: grpo
trainer: {steps: 1}
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel by way of a source distribution, from a copy of the tree without what was made in it."""
    tree = tmp_path_factory.mktemp("copy") / "tree"
    made = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, tree, symlinks=True, ignore=made)
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", tree / "dist", tree], cwd=tree)
    [built] = (tree / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where `pip install .` leads in another environment: the wheel and what it declares, without extras."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "bin" / "python"]
    run([*pip, "install", "--quiet", "--no-index", "--no-deps", wheel], cwd=folder)
    [site] = folder.glob("lib/python*/site-packages")
    [installed] = site.glob("trinity_db-*.dist-info")
    for needed in dependencies(PathDistribution(installed)):
        for entry in top_level(needed):
            if not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    return folder


@pytest.fixture(scope="module")
def command(environment: Path, server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Runs a program of that environment in a neutral folder, over a store that it made itself."""
    neutral = tmp_path_factory.mktemp("neutral")
    (neutral / "tasks.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    (neutral / "offline.yaml").write_text(OFFLINE)
    (neutral / "online.yaml").write_text(ONLINE)
    (neutral / "archiving.yaml").write_text(ARCHIVING)
    (neutral / "other.parquet").write_bytes(b"PAR1")
    with new_database(server, "template0") as url:
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        variables |= {"TRINITY_DB_URL": url, "TRINITY_DB_READ_URL": by_login(url)}
        variables["TRINITY_DB_HOME"] = str(neutral / "home")

        def call(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
            given = [str(environment / "bin" / program), *arguments]
            return subprocess.run(given, cwd=neutral, env=variables, capture_output=True, text=True)

        for arguments in ("db init", "import tasks.jsonl --as tasks --name sums"):
            made = call("trinity-db", *arguments.split())
            assert made.returncode == 0, made.stderr
        yield call


def test_the_wheel_claims_one_name(wheel: Path) -> None:
    folders = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    version = wheel.name.split("-")[1]
    assert folders == {"trinity_db", f"trinity_db-{version}.dist-info"}


def test_the_wheel_holds_every_file_of_the_package_and_no_test(wheel: Path) -> None:
    suffixes = {".py", ".sql", ".mako", ".txt", ".typed", ".css", ".js"}
    package = ROOT / "trinity_db"
    folders = [package, *(path for path in package.iterdir() if path.is_symlink())]
    wanted = {
        f"trinity_db/{path.relative_to(package)}"
        for folder in folders
        for path in folder.rglob("*")
        if path.suffix in suffixes and path.is_file()
    }
    for name in (
        "py.typed",
        "schema/views/rows.sql",
        "schema/queries/batches.sql",
        "schema/migrations/script.py.mako",
        "page/style.css",
        "page/components/rows.js",
    ):
        assert f"trinity_db/{name}" in wanted
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("trinity_db/")}
    assert held == wanted


def test_bare_names_are_not_importable_where_it_is_installed(command: Command) -> None:
    program = f"from importlib.util import find_spec; print([n for n in {BARE_NAMES} if find_spec(n)])"
    assert command("python", "-I", "-c", program).stdout == "[]\n"


def test_it_imports_where_nothing_but_its_dependencies_is_installed(command: Command) -> None:
    modules = "trinity_db.schema, trinity_db.trainer.config, trinity_db.explorer.config"
    modules += ", trinity_db.processors.service, trinity_db.data.importer, trinity_db.data.exporter"
    done = command("python", "-I", "-c", f"import {modules}; print(trinity_db.__file__)")
    assert done.returncode == 0, done.stderr
    assert "site-packages" in done.stdout


def test_help_answers_in_half_a_second(command: Command) -> None:
    seconds = []
    for _ in range(7):  # the best of several, so that a busy machine does not decide
        started = time.perf_counter()
        done = command("trinity-db", "--help")
        seconds.append(time.perf_counter() - started)
        assert done.returncode == 0, done.stderr
    assert "trinity-db" in done.stdout
    assert min(seconds) < HELP_SECONDS


def test_the_store_works_without_the_extras(command: Command) -> None:
    for arguments in (
        ["db", "check"],
        ["import", "tasks.jsonl", "--as", "tasks", "--name", "tasks"],
        ["sql", "SELECT * FROM experience_view"],
        ["process", "online.yaml", "--drain"],
        ["status"],
    ):
        done = command("trinity-db", *arguments)
        assert done.returncode == 0, (arguments, done.stderr)
    counted = command("trinity-db", "sql", "SELECT count(*) AS n FROM task", "--format", "json")
    assert json.loads(counted.stdout) == [{"n": 2}]


@pytest.mark.parametrize(
    "arguments",
    [
        ("train", "offline.yaml"),
        ("train", "online.yaml"),
        ("explore", "online.yaml"),
        ("run", "online.yaml"),
        ("demo",),
    ],
    ids=" ".join,
)
def test_a_command_that_lacks_an_extra_says_which_to_install(
    command: Command, arguments: tuple[str, ...]
) -> None:
    done = command("trinity-db", *arguments)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert line.endswith("pip install 'trinity-db[train]'")


@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "sums", "tasks.parquet", "--as", "tasks"),
        ("sql", "SELECT 1 AS n", "--format", "parquet", "--output", "n.parquet"),
        ("import", "other.parquet", "--as", "tasks", "--name", "other"),
        ("process", "archiving.yaml", "--drain"),
    ],
    ids=" ".join,
)
def test_a_command_that_reads_or_writes_arrow_names_the_extra(
    command: Command, arguments: tuple[str, ...]
) -> None:
    done = command("trinity-db", *arguments)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.endswith("pip install 'trinity-db[lance]'")


def test_the_readme_of_the_package_has_no_relative_link(wheel: Path) -> None:
    files = zipfile.ZipFile(wheel)
    [name] = [name for name in files.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = files.read(name).decode()
    assert "Description-Content-Type: text/markdown" in metadata
    assert "# trinity-db" in metadata
    assert re.findall(r"\]\((?!https?:|#)[^)]+\)", metadata) == []


def run(arguments: Sequence[object], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run to success, or fail with what it said."""
    done = subprocess.run(list(map(str, arguments)), cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def dependencies(package: Distribution) -> list[Distribution]:
    """What a package needs, and what that needs, as installed here; of its extras none."""
    found: dict[str, Distribution] = {}
    pending: list[tuple[Distribution, set[str]]] = [(package, {""})]
    while pending:
        needing, extras = pending.pop()
        for requirement in map(Requirement, needing.requires or []):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras):
                needed = distribution(requirement.name)
                if needed.name not in found or requirement.extras:
                    found[needed.name] = needed
                    pending.append((needed, {"", *requirement.extras}))
    return list(found.values())


def top_level(package: Distribution) -> set[Path]:
    """The folders and files of a package in site-packages."""
    firsts = {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}
    return {Path(str(package.locate_file(first))) for first in firsts}
