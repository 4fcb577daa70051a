"""Evidence that what a run learns from has text of what it is evaluated by."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from trinity_db.processors.overlap import evaluated, texts
from trinity_db.processors.step import Context, step
from trinity_db.store import overlaps, runs

logger = logging.getLogger(__name__)


@step(batch=256)
class NoteOverlap:
    """Notes which responses, and which of their tasks, have text of tasks that are kept for evaluation.

    It drops nothing: such text is often no leak, as a common phrase or a formula. A person looks at the
    evidence in `overlap_view` and decides. Texts are compared by runs of words that are the same, as GPT-3's
    training data was. A text of the evaluated task with fewer words than a run is compared as a whole, and
    one of fewer than 8 words not at all. Tasks that are imported later are seen by the next processor that
    starts.

    Args:
        tasksets: Names of the tasksets for evaluation.
        words: Length of a run.
    """

    def __init__(
        self,
        run: Context,
        *,
        tasksets: Annotated[Sequence[str], Field(min_length=1)],
        words: Annotated[int, Field(ge=1, le=1000)] = 13,
    ) -> None:
        self._database = run.database
        with self._database.transaction(read_only=True) as tx:
            ids = [runs.find_taskset(tx, name) for name in tasksets]
        self._evaluated = evaluated(self._database, ids, words)
        self._compared: set[int] = set()
        """Tasks that this process has compared."""
        if self._evaluated.too_short:
            names = ", ".join(tasksets)
            logger.warning("note_overlap: %d tasks of %s are too short", self._evaluated.too_short, names)

    def __call__(
        self,
        id: Sequence[int],
        task_id: Sequence[int | None],
        task: Sequence[Mapping[str, Any] | None],
        response: Sequence[str],
    ) -> Iterator[tuple[int, None]]:
        """None for each row, after what was found is stored."""
        found = [
            replace(one, experience_id=row)
            for row, text in zip(id, response, strict=True)
            for one in self._evaluated.found_in([text])
        ]
        tasks = {of: payload for of, payload in zip(task_id, task, strict=True) if of not in self._compared}
        for of, payload in tasks.items():
            if of is not None:
                others = self._evaluated.found_in(texts(payload))
                found += [replace(one, of_task_id=of) for one in others if one.task_id != of]
        with self._database.transaction() as tx:
            overlaps.write(tx, self._evaluated.measure, found)
        self._compared |= {of for of in tasks if of is not None}
        yield from ((place, None) for place in range(len(id)))
