"""What steps of `synthesis` return: tasks and responses, checked against the row that they are made from."""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trinity_db.imports import records
from trinity_db.imports.known_prompts import digest_of, prompt_of
from trinity_db.imports.records import Demonstration, Task, Unfit
from trinity_db.processors.results import failed, plain
from trinity_db.processors.step import Answer, Response, Step
from trinity_db.store.processing import Verdict


@dataclass(frozen=True)
class Made:
    """A task, or a response to the row's task."""

    step: str
    record: Task | Demonstration
    detail: Mapping[str, Any] | None

    @property
    def is_task(self) -> bool:
        """Whether it is a task, and no response."""
        return isinstance(self.record, Task)

    @property
    def digest(self) -> str:
        """Of its text without case and spaces, and of the task that it answers."""
        if isinstance(self.record, Task):
            return digest_of(prompt_of(self.record.payload))
        return digest_of(f"{self.record.task.key}\n{self.record.response}")


def of_synthesis(step: Step, row: Mapping[str, Any], verdict: Verdict, result: Any) -> Verdict:
    """A text is a new prompt in the place of the row's; a mapping a whole task; a `Response` an answer to the
    row's task; a list has several of them. None: nothing is made of this row.

    What is empty, no task at all, or equal to the row, fails the row, which is asked about again.
    """
    detail = None
    if isinstance(result, Answer):
        result, detail = result.value, plain(result.detail)
    if result is None:
        return verdict
    for one in result if isinstance(result, list) else [result]:
        try:
            made = Made(step.name, _record(row, one), detail)
        except Unfit as error:
            return failed(verdict, step, f"{step.name} returned {reprlib.repr(one)}: {error}")
        verdict = replace(verdict, made=[*verdict.made, made])
    return verdict


def _record(row: Mapping[str, Any], result: Any) -> Task | Demonstration:
    source = dict(row["task"])
    if isinstance(result, Response):
        text = records.text(result.text, "the response")
        response = Demonstration(_asked(source), text, {})  # this finds half of a surrogate pair
        if digest_of(text) == digest_of(row["response"] or ""):
            raise Unfit("it is the row's own response")
        return response
    if isinstance(result, str):
        result = _with_prompt(source, records.text(result, "the prompt"))
    if not isinstance(result, Mapping):
        raise Unfit("it is no prompt, task or Response")
    payload = records.tidy(dict(result))
    _check(payload)
    task = Task(payload)  # as above
    if digest_of(prompt_of(payload)) == digest_of(prompt_of(source)):
        raise Unfit("it is the row's own task")
    return task


def _asked(source: Mapping[str, Any]) -> Task:
    """A task with nothing but what is asked, as imported responses have it."""
    name = "messages" if "messages" in source else "prompt"
    return Task({name: source[name]})


def _with_prompt(source: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    """The task with another prompt: that of a conversation is what the user said last."""
    if "messages" not in source:
        return {**source, "prompt": prompt}
    messages = [dict(one) for one in source["messages"]]
    asked = [place for place, one in enumerate(messages) if one.get("role") == "user"]
    if not asked:
        raise Unfit("the conversation of its source has no message of the user to replace")
    messages[asked[-1]]["content"] = prompt
    return {**source, "messages": messages}


def _check(payload: Mapping[str, Any]) -> None:
    messages = payload.get("messages")
    if messages is None:
        records.text(payload.get("prompt"), "prompt")
        return
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise Unfit("'messages' must be a list of messages")
    for one in messages:
        if not isinstance(one, Mapping) or not isinstance(one.get("role"), str):
            raise Unfit("each of its messages needs a role and a content")
        records.text(one.get("content"), "content")
