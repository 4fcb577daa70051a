"""Results of `synthesis` steps: tasks and responses, checked against the source row."""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trinity_db.data.records import records
from trinity_db.data.records.known_prompts import digest_of, prompt_of
from trinity_db.data.records.records import Demonstration, Task, Unfit
from trinity_db.processors.lists.results import failed, plain
from trinity_db.processors.lists.step import Answer, Response, Step
from trinity_db.store.processing import StepVerdict


@dataclass(frozen=True)
class Made:
    """A task, or a response to the row's task."""

    step: str
    record: Task | Demonstration
    detail: Mapping[str, Any] | None

    @property
    def is_task(self) -> bool:
        """Whether the record is a task, not a response."""
        return isinstance(self.record, Task)

    @property
    def digest(self) -> str:
        """Digest of the text, ignoring case and spaces, and of the task that a response answers."""
        if isinstance(self.record, Task):
            return digest_of(prompt_of(self.record.payload))
        return digest_of(f"{self.record.task.key}\n{self.record.response}")


def of_synthesis(step: Step, row: Mapping[str, Any], verdict: StepVerdict, result: Any) -> StepVerdict:
    """Read a result: a string is a new prompt for the row's task; a mapping is a whole task; a `Response`
    answers the row's task; a list has several of these. None: nothing is made of this row.

    An empty or invalid result, or a copy of the row's text, fails the row, which is retried.
    """
    detail = None
    if isinstance(result, Answer):
        result, detail = result.value, plain(result.detail)
    if result is None:
        return verdict
    for item in result if isinstance(result, list) else [result]:
        try:
            made = Made(step.name, _record(row, item), detail)
        except Unfit as error:
            return failed(verdict, step, f"{step.name} returned {reprlib.repr(item)}: {error}")
        verdict = replace(verdict, made=[*verdict.made, made])
    return verdict


def _record(row: Mapping[str, Any], result: Any) -> Task | Demonstration:
    source = dict(row["task"])
    if isinstance(result, Response):
        text = records.text(result.text, "the response")
        response = Demonstration(_task_of(source), text, {})  # rejects lone surrogates
        if digest_of(text) == digest_of(row["response"] or ""):
            raise Unfit("it is the row's own response")
        return response
    if isinstance(result, str):
        result = _with_prompt(source, records.text(result, "the prompt"))
    if not isinstance(result, Mapping):
        raise Unfit("it is not a prompt, a task or a Response")
    payload = {name: value for name, value in result.items() if value is not None}
    _check(payload)
    task = Task(payload)  # rejects lone surrogates
    if digest_of(prompt_of(payload)) == digest_of(prompt_of(source)):
        raise Unfit("it is the row's own task")
    return task


def _task_of(source: Mapping[str, Any]) -> Task:
    """Return a task with only its prompt or messages, like imported responses."""
    name = "messages" if "messages" in source else "prompt"
    return Task({name: source[name]})


def _with_prompt(source: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    """Return the task with another prompt; in a conversation it replaces the user's last message."""
    if "messages" not in source:
        return {**source, "prompt": prompt}
    messages = [dict(message) for message in source["messages"]]
    user_turns = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    if not user_turns:
        raise Unfit("the conversation of its source has no message of the user to replace")
    messages[user_turns[-1]]["content"] = prompt
    return {**source, "messages": messages}


def _check(payload: Mapping[str, Any]) -> None:
    messages = payload.get("messages")
    if messages is None:
        records.text(payload.get("prompt"), "prompt")
        return
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise Unfit("'messages' must be a list of messages")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise Unfit("each of its messages needs a role and a content")
        records.text(message.get("content"), "content")
