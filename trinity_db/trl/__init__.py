"""Training of a run's rollout groups by TRL: `StoreGRPOTrainer`. Only this package imports trl."""

from trinity_db.errors import MissingExtra

try:
    import trl  # noqa: F401
except ImportError as error:
    raise MissingExtra("trl", "trl") from error

from trinity_db.trl.trainer import StoreGRPOTrainer

__all__ = ["StoreGRPOTrainer"]
