"""The same runs to play with as in the integration tests, and the interpreters that have the agents."""

import sys
from pathlib import Path

import pytest

from tests.integration.conftest import explore, explorer, scene, shared_database, starting_model
from tests.others.agents.training import AgentRun
from tests.support.explorers import Explore
from tests.support.rows import Scene

__all__ = ["explore", "explorer", "scene", "shared_database", "starting_model"]

ROOT = Path(__file__).parents[3]
ENVIRONMENT = ROOT / ".venv-agents"
PYTHON = str(ENVIRONMENT / "bin" / "python")
PACKAGES = ENVIRONMENT / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
FOLDERS = (
    ENVIRONMENT / "node_modules" / ".bin",
    ENVIRONMENT / "bin",
    ENVIRONMENT / "aider" / "bin",
)
"""Folders of programs."""
CREWAI = str(ENVIRONMENT / "crewai" / "bin" / "python")


@pytest.fixture
def run(scene: Scene, explore: Explore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentRun:
    """A run that is started in a folder of its own, and whose programs reach no other host."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")  # else it sends them to OpenAI
    monkeypatch.chdir(tmp_path)
    return AgentRun(scene, explore, tmp_path)
