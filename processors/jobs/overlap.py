"""Detects text of held-out evaluation tasks, by matching runs of words."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from trinity_db.postgres.connection import Database
from trinity_db.processors.jobs.words import runs, words
from trinity_db.store import overlaps
from trinity_db.store.overlaps import Overlap

LEAST = 8  # words, the shortest runs of GPT-3; shorter ones match unrelated texts


class EvaluatedTasks:
    """Tasks of evaluation tasksets, in memory: about 500 bytes per word.

    A text of at least LEAST but fewer than `length` words is compared as a whole. A shorter text, such as a
    single number, is not compared.

    Source: the decontamination of GPT-3, arXiv 2005.14165, appendix C, with runs of 8 to 13 words.
    """

    def __init__(self, length: int) -> None:
        self.measure = f"{length} words"
        self.num_tasks = 0
        """Number of tasks that texts are compared with."""
        self.too_short = 0
        """Number of tasks without a text that is long enough."""
        self._length = length
        self._least = min(length, LEAST)
        self._tasks_with: dict[str, set[int]] = {}
        """Task IDs by run."""
        self._lengths: dict[int, tuple[int, ...]] = {}
        """Lengths of runs in words, by the hash of their first words, for lookup."""
        self._sizes: dict[int, int] = {}
        """Number of different runs of each task."""

    def add(self, task_id: int, payload: Mapping[str, Any]) -> None:
        """Add a task to the comparison."""
        task_runs: set[str] = set()
        for text in texts(payload):
            split = words(text)
            if len(split) >= self._least:
                length = min(len(split), self._length)
                task_runs.update(runs(split, length))
                for begin in runs(split[: len(split) - length + self._least], self._least):
                    known = self._lengths.get(hash(begin), ())
                    if length not in known:
                        self._lengths[hash(begin)] = (*known, length)
        self.num_tasks += bool(task_runs)
        self.too_short += not task_runs
        self._sizes[task_id] = len(task_runs)
        for run in task_runs:
            self._tasks_with.setdefault(run, set()).add(task_id)

    def found_in(self, some: Iterable[str]) -> list[Overlap]:
        """Return, for each task that shares a run with these texts, how much they share."""
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
    """Load the current tasks of these tasksets."""
    tasks = EvaluatedTasks(length)
    for taskset_id in taskset_ids:
        for rows in overlaps.tasks(database, taskset_id):
            for row in rows:
                tasks.add(row["id"], row["payload"])
    return tasks


def texts(payload: Any) -> Iterator[str]:
    """Yield all texts in a task's payload: its prompt or messages, its answer and anything else."""
    if isinstance(payload, str):
        yield payload
    elif isinstance(payload, Mapping):
        for value in payload.values():
            yield from texts(value)
    elif isinstance(payload, list):
        for value in payload:
            yield from texts(value)
