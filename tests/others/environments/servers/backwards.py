"""A taskset of verifiers v1: write a word backwards."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["Words"]


class Data(vf.TaskData):
    word: str


class Backwards(vf.Task[Data]):
    @vf.reward
    async def right(self, trace: vf.Trace) -> float:
        return float((trace.last_reply or "").strip() == self.data.word[::-1])


class Words(vf.Taskset[Backwards, vf.TasksetConfig]):
    def load(self) -> Iterator[Backwards]:
        for word in ("abc", "bca"):
            yield Backwards(Data(prompt=f"Write {word} backwards.", word=word), self.config.task)
