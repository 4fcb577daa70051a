"""Records as text for people, with marks around the parts that are trained.

The marks follow the messages and their weights. The tokens depend on the model and its chat template.
"""

from collections.abc import Iterable, Sequence

from trinity_db.data.records.messages import SHOWN
from trinity_db.data.records.records import (
    Demonstration,
    Message,
    Preference,
    Record,
    Response,
    Task,
    Trajectory,
    Unpaired,
    text_of,
)
from trinity_db.data.traces.traces import Trace
from trinity_db.models.chat.prompts import function_of

BEGIN, END = "⟦", "⟧"
WHOLE = 600  # characters of a text that are shown whole; of a longer one the beginning and the end
PART = 250


def shown(record: Record) -> str:
    """Return a record as text: a plain prompt with its response, or a line for each message."""
    match record:
        case Task():
            answer = (
                [f"answer: {_clipped(str(record.payload['answer']))}"] if "answer" in record.payload else []
            )
            return "\n".join([*_prompt(record), *answer])
        case Demonstration():
            return _attempt(record.task, record.response)
        case Trajectory():
            earned = [] if record.reward is None else [f"reward: {record.reward:g}"]
            return "\n".join([_attempt(record.task, record.response), *earned])
        case Unpaired():
            return f"{_attempt(record.task, record.response)}\nlabel: {str(record.label).lower()}"
        case Preference():
            sides = (("chosen", record.chosen), ("rejected", record.rejected))
            return "\n".join(
                [*_prompt(record.task), *(f"{name} {_response(response)}" for name, response in sides)]
            )
        case Trace():
            return "\n".join([*_prompt(record.task), *_sequences(record)])
    raise AssertionError(f"{type(record).__name__} has no text")


def _attempt(task: Task, response: Response) -> str:
    if task.messages is None:
        return f"{_clipped(task.prompt)}{_response(response)}"
    return "\n".join(
        [*_prompt(task), f"{'assistant: ' if isinstance(response, str) else ''}{_response(response)}"]
    )


def _prompt(task: Task) -> list[str]:
    if task.messages is None:
        return [_clipped(task.prompt)]
    names = [str(function_of(tool).get("name")) for tool in task.tools or ()]
    tools = [f"tools: {_clipped(', '.join(names))}"] if names else []
    return [*tools, *_lines(task.messages, weight=0)]


def _response(response: Response) -> str:
    if isinstance(response, str):
        return _marked(_clipped(response))
    return "\n".join(_lines(response, weight=1))


def _lines(messages: Sequence[Message], weight: int) -> Iterable[str]:
    """Yield a line for each message.

    Args:
        weight: of assistant turns without a weight.
    """
    for message in messages:
        body = _clipped("\n".join([*_thoughts(message), text_of([message])]))
        is_trained = message["role"] == "assistant" and message.get("weight", weight)
        yield f"{message['role']}: {_marked(body) if is_trained else body}"


def _thoughts(message: Message) -> Iterable[str]:
    for key in SHOWN:
        if key != "tool_calls" and message.get(key):
            yield f"({key}: {message[key]})"


def _sequences(trace: Trace) -> Iterable[str]:
    for sequence in trace.sequences:
        yield f"response: {_clipped(sequence.response)}"
        yield f"trained: {sequence.num_trained} of {sequence.num_tokens} tokens"


def _marked(text: str) -> str:
    return f"{BEGIN}{text}{END}"


def _clipped(text: str) -> str:
    if len(text) <= WHOLE:
        return text
    return f"{text[:PART]} … ({len(text) - 2 * PART:,} more characters) … {text[-PART:]}"
