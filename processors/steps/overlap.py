"""Contamination checks: text of evaluation tasks in training data."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from trinity_db.processors.jobs.overlap import evaluated, texts
from trinity_db.processors.lists.step import Context, step
from trinity_db.store import overlaps, runs

logger = logging.getLogger(__name__)


@step(batch=256)
class NoteOverlap:
    """Records which responses, and which of their tasks, contain text of held-out evaluation tasks.

    It drops nothing: such text is often a common phrase or a formula instead of a leak. Review the evidence
    in `overlap_view` and decide. Texts are compared by identical runs of words, like GPT-3's training data.
    A text of the evaluation task with fewer words than a run is compared as a whole; texts of fewer than 8
    words are not compared. Tasks imported later are included when a processor next starts.

    Args:
        tasksets: Names of the evaluation tasksets.
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
        """Tasks that this process has already compared."""
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
        """Store the overlaps and yield None for each row."""
        overlaps_of_rows = [
            replace(overlap, experience_id=row)
            for row, text in zip(id, response, strict=True)
            for overlap in self._evaluated.found_in([text])
        ]
        tasks = {
            checked_id: payload
            for checked_id, payload in zip(task_id, task, strict=True)
            if checked_id not in self._compared
        }
        for of_task_id, payload in tasks.items():
            if of_task_id is not None:
                others = self._evaluated.found_in(texts(payload))
                overlaps_of_rows += [
                    replace(overlap, of_task_id=of_task_id)
                    for overlap in others
                    if overlap.task_id != of_task_id
                ]
        with self._database.transaction() as tx:
            overlaps.write(tx, self._evaluated.measure, overlaps_of_rows)
        self._compared |= {of_task_id for of_task_id in tasks if of_task_id is not None}
        yield from ((index, None) for index in range(len(id)))
