"""The same runs to play with as in the integration tests, and the interpreter that has the frameworks."""

from pathlib import Path

from tests.integration.conftest import explore, explorer, scene, shared_database, starting_model

__all__ = ["NPM", "PYTHON", "explore", "explorer", "scene", "shared_database", "starting_model"]

ENVIRONMENT = Path(__file__).parents[3] / ".venv-agents"
PYTHON = str(ENVIRONMENT / "bin" / "python")
NPM = ENVIRONMENT / "node_modules" / ".bin"
"""Programs of npm packages."""
