"""Prepares adopted rows before the first draw: their tokens, and the passes over whole groups."""

import sys
from collections.abc import Callable
from typing import Any

from trinity_db.models.chat.prompts import ChatRenderer
from trinity_db.postgres.connection import Database
from trinity_db.store import offline, runs
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.loop.setup import TrainerSetup
from trinity_db.trainer.rows.encode import encode_adopted
from trinity_db.trainer.rows.sources import check_sampled, check_tokenizers


def prepare(
    database: Database,
    run: runs.Run,
    worker_id: int,
    setup: TrainerSetup,
    context: int,
    renderer: ChatRenderer,
    should_stop: Callable[[], bool],
) -> None:
    """Tokenise adopted rows, and let groups whose rows all have tokens enter the passes.

    Args:
        context: Maximum length of the model's sequences, in tokens.
        should_stop: If it returns True, the next start prepares the remaining rows.

    Raises:
        ConfigError: if the rows' tokens mean other texts here, or lack columns that the algorithm reads.
        LeaseLost: if another trainer has taken over.
    """
    adopts_groups = setup.algorithm.draws == "groups" and not setup.is_online
    if setup.expert_rows or not setup.is_online:
        limit = min(setup.trainer.max_length or sys.maxsize, context)
        tokenizer: Any = renderer.tokenizer
        check_tokenizers(database, run.id, tokenizer)
        encode_adopted(
            database,
            run.id,
            worker_id,
            renderer,
            len(tokenizer),
            limit,
            should_stop=should_stop,
            keeps_temperature=adopts_groups,
        )
    if adopts_groups and not should_stop():
        offline.seed_groups(database, run.id, setup.min_group_size)
        check_sampled(database, run.id, create(setup.algorithm).needs)
