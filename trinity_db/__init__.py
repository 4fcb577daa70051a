"""trinity-db: reinforcement fine-tuning with the experience database as the contract.

`trinity_db.connect()` opens the store for a program (`trinity_db.api`). The roles (`explorer`, `processors`,
`trainer`) and the contract itself (`schema`) are sibling folders, linked in here.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trinity_db.api.explorer import Explorer, Group, Rollout, TooStale
    from trinity_db.api.query import Query
    from trinity_db.api.run import Run
    from trinity_db.api.store import Store, connect
    from trinity_db.api.trainer import Batch, LeaseLost, SetBack, Trainer

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "Explorer",
    "Group",
    "LeaseLost",
    "Query",
    "Rollout",
    "Run",
    "SetBack",
    "Store",
    "TooStale",
    "Trainer",
    "connect",
]

_MODULES = {
    "Batch": "trainer",
    "Explorer": "explorer",
    "Group": "explorer",
    "LeaseLost": "trainer",
    "Query": "query",
    "Rollout": "explorer",
    "Run": "run",
    "SetBack": "trainer",
    "Store": "store",
    "TooStale": "explorer",
    "Trainer": "trainer",
    "connect": "store",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that commands which do not need it start fast."""
    if name not in _MODULES:
        raise AttributeError(f"module 'trinity_db' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(f"trinity_db.api.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
