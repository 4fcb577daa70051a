"""The same runs to play with as in the integration tests."""

from tests.integration.conftest import scene, shared_database

__all__ = ["scene", "shared_database"]
