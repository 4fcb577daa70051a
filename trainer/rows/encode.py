"""Tokenises adopted rows, once, before the first draw.

Tokens are computed from the text, or copied from an imported trace or the other run. A row that the model
cannot process is dropped with the reason, and so are the pairs that contain it. Each chunk is committed.
After a crash the next start continues with the remaining rows.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import takewhile

import numpy as np

from trinity_db.arrays.codec import NO_VERSION, Payload
from trinity_db.models.chat.prompts import ChatRenderer, PromptTooLong, UntokenizableText
from trinity_db.models.chat.replies import EmptyResponse, Replies
from trinity_db.postgres.connection import Database
from trinity_db.store import offline, payloads, workers

logger = logging.getLogger(__name__)

CHUNK_ROWS = 1000  # a transaction of a few megabytes


def encode_adopted(
    database: Database,
    run_id: int,
    worker_id: int,
    renderer: ChatRenderer,
    vocabulary: int,
    max_length: int,
    should_stop: Callable[[], bool],
    keeps_temperature: bool = False,
) -> None:
    """Tokenise every adopted row without tokens.

    Args:
        vocabulary: Number of tokens of the model.
        max_length: Maximum tokens of prompt and response together; longer rows are truncated.
        should_stop: Called between two rows. If it returns True, the next start processes the rest.
        keeps_temperature: Whether tokens keep the temperature of the run that sampled them.

    Raises:
        LeaseLost: if another trainer has taken over, and tokenises the rest.
    """
    with database.transaction() as tx:
        total = offline.count_unencoded(tx, run_id)
    replies = Replies(renderer)
    done = dropped = plain = after = 0
    while done < total and not should_stop():
        with database.transaction() as tx:
            texts = offline.unencoded(tx, run_id, after, CHUNK_ROWS)
        if not texts:
            return
        traced = payloads.read(database, [text.traced for text in texts if text.traced is not None])
        if keeps_temperature:
            traced = {
                text.traced: _tempered(traced[text.traced], text.temperature)
                for text in texts
                if text.traced is not None
            }
        rows = takewhile(lambda _: not should_stop(), texts)
        encoded, refused = _encode(rows, traced, replies, vocabulary, max_length)
        if not encoded and not refused:
            break
        with database.transaction() as tx:
            workers.hold_place(tx, worker_id)
            offline.write_tokens(tx, encoded)
            offline.drop(tx, run_id, refused)
        num_rows = len(encoded) + len(refused)
        plain += sum(is_plain(text, renderer) for text in texts[:num_rows])
        after, done, dropped = texts[num_rows - 1].id, done + num_rows, dropped + len(refused)
        logger.info("tokenised %d of %d rows", done, total)
    if plain:
        logger.warning(
            "%d imported rows with a plain prompt are trained as plain text, but the model has a chat "
            "template, which it applies to plain prompts of tasks; import messages if the model should "
            "answer in conversations, or set model.prompt_template for both",
            plain,
        )
    if dropped:
        logger.warning("%d rows do not fit this model and were dropped; see drop_view", dropped)


def is_plain(text: offline.Text, renderer: ChatRenderer) -> bool:
    """Whether a row is trained as plain text although a task with its prompt would be a conversation."""
    task = text.task
    is_text = text.traced is None and bool(task.get("prompt")) and not task.get("messages")
    return is_text and bool(renderer.messages(task))


def _encode(
    texts: Iterable[offline.Text],
    traced: Mapping[int, Payload],
    replies: Replies,
    vocabulary: int,
    max_length: int,
) -> tuple[list[tuple[int, Payload]], list[tuple[int, str, str]]]:
    encoded, refused = [], []
    for text in texts:
        try:
            if text.traced is not None:
                payload = _taken_over(traced[text.traced], vocabulary, max_length)
            else:
                payload = replies.payload(text.task, text.full_response, max_length)
            encoded.append((text.id, payload))
        except PromptTooLong as error:
            refused.append((text.id, "prompt_too_long", str(error)))
        except EmptyResponse as error:
            refused.append((text.id, "empty_response", str(error)))
        except UntokenizableText as error:
            refused.append((text.id, "untokenizable", str(error)))
    return encoded, refused


def _tempered(payload: Payload, temperature: float | None) -> Payload:
    """Record the sampling temperature of each token, if only its run specified it.

    Args:
        temperature: Temperature of the run; None if unknown.
    """
    if payload.logprobs is None or payload.temperatures is not None or temperature in (None, 1.0):
        return payload
    return replace(payload, temperatures=np.full(payload.num_trained, temperature, np.float32))


def _taken_over(payload: Payload, vocabulary: int, max_length: int) -> Payload:
    """Return the tokens of a trace or of another run, truncated, with their log-probabilities.

    Its versions are dropped: they are versions of another run, and would be mistaken for versions of this
    one.

    Raises:
        PromptTooLong: if no trained token is left.
        UntokenizableText: if the model has no such token.
    """
    if (highest := int(payload.token_ids.max())) >= vocabulary:
        raise UntokenizableText(
            f"The row has token {highest}, and the model has {vocabulary}: it comes from another model."
        )
    mask = payload.action_mask[:max_length]
    trained = int(np.count_nonzero(mask))
    if not trained:
        raise PromptTooLong(f"A row leaves no room for a trained token in {max_length}.")
    return Payload(
        payload.token_ids[:max_length],
        mask,
        None if payload.logprobs is None else payload.logprobs[:trained],
        None if payload.versions is None else np.full(trained, NO_VERSION, np.int32),
        None if payload.temperatures is None else payload.temperatures[:trained],
    )
