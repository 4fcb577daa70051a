"""What every command imports stays light, so that `--help` answers at once and the extras stay extras."""

import glob
import json
import subprocess
import sys
from pathlib import Path

import pytest

import trinity_db

PACKAGE = Path(trinity_db.__file__).parent
HEAVY = {
    *("accelerate", "datasets", "lancedb", "matplotlib", "mlflow", "nicegui", "pandas", "peft", "ray"),
    *("safetensors", "tensorboard", "tokenizers", "torch", "transformers", "vllm", "wandb"),
}
# Not loaded by a mere --help either; a command that works with rows needs them soon enough.
SLOW = {"alembic", "numpy", "psycopg", "pyarrow", "sqlalchemy"}


def config_modules() -> list[str]:
    # glob follows the links into the roles' folders; pathlib does not before Python 3.13.
    found = [*glob.glob("**/config*.py", root_dir=PACKAGE, recursive=True), "config/shared.py"]
    return sorted(f"trinity_db.{path.removesuffix('.py').replace('/', '.')}" for path in found)


LIGHT = ["trinity_db", "trinity_db.cli", *config_modules()]
PROGRAM = """
import importlib, json, sys
loaded = {}
for module in sys.argv[1:]:
    before = {*sys.modules}
    importlib.import_module(module)
    loaded[module] = sorted({name.split(".")[0] for name in sys.modules if name not in before})
print(json.dumps(loaded))
"""


def loaded_by(*modules: str) -> dict[str, set[str]]:
    """The top-level packages that each import brings into memory, one after another in one fresh process.

    A package that two modules load is the first one's, so no package is missed.
    """
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *modules], capture_output=True, text=True, check=True
    )
    return {module: {*packages} for module, packages in json.loads(run.stdout).items()}


@pytest.fixture(scope="module")
def loaded() -> dict[str, set[str]]:
    return loaded_by(*LIGHT)


def test_every_role_has_its_settings_where_this_test_looks_for_them() -> None:
    roles = {f"trinity_db.{role}.config" for role in ("explorer", "processors", "trainer")}
    assert roles | {"trinity_db.config.shared", "trinity_db.run.configuration"} <= set(config_modules())


@pytest.mark.parametrize("module", LIGHT)
def test_it_imports_without_the_heavy_libraries(loaded: dict[str, set[str]], module: str) -> None:
    assert loaded[module].isdisjoint(HEAVY)


def test_the_command_line_imports_nothing_that_is_slow() -> None:
    assert loaded_by("trinity_db.cli")["trinity_db.cli"].isdisjoint(SLOW)
