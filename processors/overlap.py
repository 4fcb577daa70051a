"""Finds text of tasks that are kept for evaluation, by runs of words that are the same."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trinity_db.database import Database
from trinity_db.processors.words import runs, words
from trinity_db.store import overlaps
from trinity_db.store.overlaps import Overlap

LEAST = 8  # words; GPT-3's shortest runs. Fewer are found in texts that have nothing to do with one another


class EvaluatedTasks:
    """The tasks of tasksets that are kept for evaluation, in memory: some 500 bytes for each word of them.

    A text of fewer than `length` words, but at least LEAST, is compared as a whole. A shorter one, as a bare
    number, is not compared.

    Source: the decontamination of GPT-3, arXiv 2005.14165, appendix C, with runs of 8 to 13 words.
    """

    def __init__(self, length: int) -> None:
        self.measure = f"{length} words"
        self.num_tasks = 0
        """That texts are compared with."""
        self.too_short = 0
        """Tasks without a text that is long enough."""
        self._length = length
        self._least = min(length, LEAST)
        self._tasks_with: dict[str, set[int]] = {}
        """Ids of tasks by their runs."""
        self._lengths: dict[int, tuple[int, ...]] = {}
        """How many words runs have, by the hash of their first words, for which texts are searched."""
        self._sizes: dict[int, int] = {}
        """Number of the different runs of each task."""

    def add(self, task_id: int, payload: Mapping[str, Any]) -> None:
        """Compare texts with this task too."""
        found: set[str] = set()
        for text in texts(payload):
            split = words(text)
            if len(split) >= self._least:
                length = min(len(split), self._length)
                found.update(runs(split, length))
                for begin in runs(split[: len(split) - length + self._least], self._least):
                    known = self._lengths.get(hash(begin), ())
                    if length not in known:
                        self._lengths[hash(begin)] = (*known, length)
        self.num_tasks += bool(found)
        self.too_short += not found
        self._sizes[task_id] = len(found)
        for run in found:
            self._tasks_with.setdefault(run, set()).add(task_id)

    def found_in(self, some: Iterable[str]) -> list[Overlap]:
        """How much of each task these texts have, of those of which they have something."""
        having: dict[int, set[str]] = {}
        first: dict[int, str] = {}
        for text in some:
            split = words(text)
            for start, begin in enumerate(runs(split, self._least)):
                for length in self._lengths.get(hash(begin), ()):
                    run = " ".join(split[start : start + length])
                    for task_id in self._tasks_with.get(run, ()):
                        having.setdefault(task_id, set()).add(run)
                        first.setdefault(task_id, run)
        return [Overlap(id, len(had) / self._sizes[id], first[id]) for id, had in sorted(having.items())]


def evaluated(database: Database, taskset_ids: Iterable[int], length: int) -> EvaluatedTasks:
    """The tasks of these tasksets, as they are now."""
    found = EvaluatedTasks(length)
    for taskset_id in taskset_ids:
        for rows in overlaps.tasks(database, taskset_id):
            for row in rows:
                found.add(row["id"], row["payload"])
    return found


def texts(payload: Any) -> Iterator[str]:
    """All texts in a task's payload: its prompt or messages, its answer and whatever else it has."""
    if isinstance(payload, str):
        yield payload
    elif isinstance(payload, Mapping):
        for value in payload.values():
            yield from texts(value)
    elif isinstance(payload, list):
        for value in payload:
            yield from texts(value)
