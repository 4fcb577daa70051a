"""Runs the processors of a run in this process."""

from trinity_db.processors.lists import lists
from trinity_db.processors.lists.step import Context
from trinity_db.processors.service import Processors
from trinity_db.run import joining
from trinity_db.run.configuration import RunConfig
from trinity_db.worker.service import is_orphan


def run_processors(config: RunConfig, drain: bool, change: bool = False) -> bool:
    """Run the processors until the run finishes or nothing is left (drain); False if a signal arrived."""
    config = joining.pinned(config)
    lists.check(config.processors, config.model)  # before the run is created
    database, run = joining.open_run(config, change)
    context = Context(database, config.model, config.explorer.temperature)
    loaded = lists.load(config.processors)
    steps = database.retry(lambda: lists.prepare(loaded, context), give_up=is_orphan)
    waits = (config.requires_reward, config.people.wait_seconds)
    processors = Processors(database, run, config.processors, steps, drain, *waits)
    processors.serve()
    return not processors.stopping
