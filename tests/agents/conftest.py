"""The same runs to play with as in the integration tests, and the interpreter that has the frameworks."""

from pathlib import Path

from tests.integration.conftest import scene, shared_database
from tests.integration.test_recording import explore

__all__ = ["PYTHON", "explore", "scene", "shared_database"]

PYTHON = str(Path(__file__).parents[2] / ".venv-agents" / "bin" / "python")
