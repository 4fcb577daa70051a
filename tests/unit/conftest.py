"""Models that several of these files test."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture whose rows lie end to end."""
    from tests.others.families.tiny import save  # with torch and transformers, which most files do not need

    folder = tmp_path_factory.mktemp("qwen3_moe")
    save("qwen3_moe", folder)
    return folder
