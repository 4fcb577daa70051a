"""The same runs to play with as in the integration tests, and the interpreter that has the frameworks."""

from pathlib import Path

from tests.integration.conftest import explore, explorer, scene, shared_database, starting_model

__all__ = ["PYTHON", "explore", "explorer", "scene", "shared_database", "starting_model"]

PYTHON = str(Path(__file__).parents[2] / ".venv-agents" / "bin" / "python")
