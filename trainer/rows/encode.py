"""Tokenises adopted rows: the trainer turns their imported text into tokens once, before the first draw.

A row that the model cannot take is dropped with the reason, and so are the pairs that contain it. Each
chunk is committed. After a crash the next start continues with the remaining rows.
"""

import logging
from collections.abc import Callable

from trinity_db.arrays import Payload
from trinity_db.database import Database
from trinity_db.prompts import PromptTooLong, Tokenizer, UntokenizableText, prompt_text, tokenize
from trinity_db.store import offline, workers

logger = logging.getLogger(__name__)

CHUNK_ROWS = 1000  # a transaction of a few megabytes


def encode_adopted(
    database: Database,
    run_id: int,
    worker_id: int,
    tokenizer: Tokenizer,
    template: str,
    max_length: int,
    should_stop: Callable[[], bool],
) -> None:
    """Tokenise every adopted row that has no tokens yet.

    Args:
        max_length: prompt and response together are cut to so many tokens.
        should_stop: called between two chunks. If it returns True, the next start does the rest.

    Raises:
        LeaseLost: another trainer has this one's place, and tokenises the rest.
    """
    with database.transaction() as tx:
        total = offline.count_unencoded(tx, run_id)
    done = dropped = after = 0
    while done < total and not should_stop():
        with database.transaction() as tx:
            texts = offline.unencoded(tx, run_id, after, CHUNK_ROWS)
        if not texts:
            return
        encoded, refused = _encode(texts, tokenizer, template, max_length)
        with database.transaction() as tx:
            workers.hold_place(tx, worker_id)
            offline.write_tokens(tx, encoded)
            offline.drop(tx, run_id, refused)
        after, done, dropped = texts[-1].id, done + len(texts), dropped + len(refused)
        logger.info("tokenised %d of %d rows", done, total)
    if dropped:
        logger.warning("%d rows do not fit this model and were dropped; see drop_view", dropped)


def _encode(
    texts: list[offline.Text], tokenizer: Tokenizer, template: str, max_length: int
) -> tuple[list[tuple[int, Payload]], list[tuple[int, str, str]]]:
    encoded, refused = [], []
    for text in texts:
        try:
            prompt = prompt_text(text.task, template, tokenizer)
            encoded.append((text.id, tokenize(prompt, text.response, tokenizer, max_length)))
        except PromptTooLong as error:
            refused.append((text.id, "prompt_too_long", str(error)))
        except UntokenizableText as error:
            refused.append((text.id, "untokenizable", str(error)))
    return encoded, refused
