"""The same runs to play with as in the integration tests, and the interpreter that has the frameworks."""

import sys
from pathlib import Path

from tests.integration.conftest import explore, explorer, scene, shared_database, starting_model

__all__ = ["NPM", "PACKAGES", "PYTHON", "explore", "explorer", "scene", "shared_database", "starting_model"]

ENVIRONMENT = Path(__file__).parents[3] / ".venv-agents"
PYTHON = str(ENVIRONMENT / "bin" / "python")
PACKAGES = ENVIRONMENT / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
NPM = ENVIRONMENT / "node_modules" / ".bin"
"""Programs of npm packages."""
