"""Steps of `synthesis`: models behind an OpenAI-compatible endpoint write tasks and answers.

Each step receives the row with the highest reward of a settled group.
"""

import json
from collections.abc import Mapping
from functools import partialmethod
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from trinity_db.config.shared import ModelConfig
from trinity_db.data.records.known_prompts import digest_of, prompt_of
from trinity_db.models.chat.thoughts import after_thoughts
from trinity_db.processors.judging.endpoint import (
    JudgeEndpoint,
    Reply,
    address,
    check_client,
    key_of,
    variable,
)
from trinity_db.processors.judging.question import tamed
from trinity_db.processors.lists.step import Answer, Context, NotAnswered, Response, step

Url = Annotated[str, AfterValidator(address)]
KeyEnv = Annotated[str | None, AfterValidator(variable)]
Model = Annotated[str, Field(min_length=1)]
Mean = Annotated[float | None, Field(allow_inf_nan=False)]

BODY = {"max_tokens": 2048}
REWRITE = (
    "Rewrite the task of the next message in other words. Its answer must stay the same. Answer with the "
    "rewritten task and nothing else."
)
HARDER = (
    "Write a task like that of the next message, but harder. Answer with one JSON object and nothing else, "
    'with the keys "prompt", the text of the task, and "answer", its right answer, as short as in the source.'
)
DISTILLED = "Solve the task of the next message."


class _Writer:
    """Base class of these steps: a model behind an endpoint, and limits of a group's mean reward.

    Subclasses have the same constructor with other defaults.
    """

    name: ClassVar[str]

    def __init__(
        self,
        run: Context,
        *,
        url: Url,
        model: Model,
        key_env: KeyEnv = None,
        instructions: str,
        min_mean: Mean,
        max_mean: Mean,
        body: Mapping[str, Any] = BODY,
    ) -> None:
        self._endpoint = JudgeEndpoint(url, model, body, key_of(self.name, key_env))
        self._instructions = instructions
        self._min_mean = min_mean
        self._max_mean = max_mean

    @classmethod
    def check(cls, model: ModelConfig, /, *, key_env: str | None, **options: Any) -> None:
        """Check before the run is created that the model can be called.

        Raises:
            ConfigError: if the key or aiohttp is missing.
        """
        check_client(cls.name)
        key_of(cls.name, key_env)

    def _wants(self, group_mean: float | None) -> bool:
        """Whether the mean reward of the group is within the limits."""
        if group_mean is None:
            return self._min_mean is None and self._max_mean is None
        low = self._min_mean is None or group_mean >= self._min_mean
        return low and (self._max_mean is None or group_mean <= self._max_mean)

    async def _write(self, task: Mapping[str, Any], more: str = "") -> tuple[Reply, dict[str, Any], int]:
        """Return the model's answer, its description for the origin, and its tokens."""
        messages = [
            {"role": "system", "content": self._instructions},
            {"role": "user", "content": task_text(task) + more},
        ]
        reply = await self._endpoint.ask(messages)
        detail = {
            "model": reply.model,
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens,
        }
        return reply, detail, reply.prompt_tokens + reply.completion_tokens

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()


def task_text(task: Mapping[str, Any]) -> str:
    """Return the text of a task, escaped so that it cannot imitate a message."""
    if "messages" in task:
        return tamed("\n".join(json.dumps(message, ensure_ascii=False) for message in task["messages"]))
    return tamed(str(task["prompt"]))


@step()
class Rewrite(_Writer):
    """Rewrites a task in other words, with the answer and the other columns of its source.

    Args:
        url: Address of the endpoint including its version, such as http://localhost:8000/v1 for vLLM's
            server.
        model: Name under which the endpoint serves the model.
        key_env: Name of the environment variable with the endpoint's key. null: no key.
        instructions: Instructions to the model, before the task.
        min_mean: Minimum mean reward of the group. null: no limit.
        max_mean: Maximum mean reward of the group. null: no limit.
        body: Further fields of each request.
    """

    name = "rewrite"
    __init__ = partialmethod(_Writer.__init__, instructions=REWRITE, min_mean=None, max_mean=None)

    async def __call__(self, task: Mapping[str, Any], group_mean: float | None) -> Answer | None:
        """Return the new prompt."""
        if not self._wants(group_mean):
            return None
        reply, detail, tokens = await self._write(task)
        prompt = after_thoughts(reply.text).strip()
        _check_new(task, prompt, reply, tokens)
        return Answer(prompt, detail, tokens)


@step()
class Harder(_Writer):
    """Writes a harder task with an answer by the same model. It has no other columns of its source.

    The answer is not checked and may be wrong. Output other than a JSON object with both keys is retried.

    Args:
        url: Address of the endpoint including its version, such as http://localhost:8000/v1 for vLLM's
            server.
        model: Name under which the endpoint serves the model.
        key_env: Name of the environment variable with the endpoint's key. null: no key.
        instructions: Instructions to the model, before the task. They must ask for the JSON object.
        min_mean: Minimum mean reward of the group, so that solved tasks get harder. null: no limit.
        max_mean: Maximum mean reward of the group. null: no limit.
        body: Further fields of each request.
    """

    name = "harder"
    __init__ = partialmethod(_Writer.__init__, instructions=HARDER, min_mean=0.5, max_mean=None)

    async def __call__(self, task: Mapping[str, Any], group_mean: float | None) -> Answer | None:
        """Return the new task."""
        if not self._wants(group_mean):
            return None
        shown = f"\n\nIts answer: {tamed(str(task['answer']))}" if "answer" in task else ""
        reply, detail, tokens = await self._write(task, shown)
        made = _object(after_thoughts(reply.text).strip())
        if made is None:
            shown = " ".join(reply.text.split())
            message = f"{reply.model} wrote no JSON object with prompt and answer: {shown!r:.200}"
            raise NotAnswered(message, tokens=tokens)
        _check_new(task, made["prompt"], reply, tokens)
        return Answer(made, detail, tokens)


@step()
class Distilled(_Writer):
    """Writes a teacher's answer to the row's task: an expert row in the data set of processors.made.data.

    Args:
        url: Address of the endpoint including its version, such as http://localhost:8000/v1 for vLLM's
            server.
        model: Name under which the endpoint serves the teacher.
        key_env: Name of the environment variable with the endpoint's key. null: no key.
        instructions: Instructions to the teacher, before the task.
        min_mean: Minimum mean reward of the group. null: no limit.
        max_mean: Maximum mean reward of the group, to select tasks that the policy does not solve. null: no
            limit.
        body: Further fields of each request.
    """

    name = "distilled"
    __init__ = partialmethod(_Writer.__init__, instructions=DISTILLED, min_mean=None, max_mean=0.5)

    async def __call__(self, task: Mapping[str, Any], group_mean: float | None) -> Answer | None:
        """Return the teacher's answer."""
        if not self._wants(group_mean):
            return None
        reply, detail, tokens = await self._write(task)
        return Answer(Response(after_thoughts(reply.text).strip()), detail, tokens)


def _check_new(task: Mapping[str, Any], prompt: str, reply: Reply, tokens: int) -> None:
    """Check the new task here, so that a failure is retried; an accepted answer would be cached.

    Raises:
        NotAnswered: if the model wrote nothing, or repeated its source.
    """
    source = prompt_of(task)
    if "messages" in task:
        user_turns = [message.get("content") for message in task["messages"] if message.get("role") == "user"]
        source = str(user_turns[-1]) if user_turns else source
    if not prompt.strip():
        raise NotAnswered(f"{reply.model} wrote nothing after its thoughts", tokens=tokens)
    if digest_of(prompt) == digest_of(source):
        raise NotAnswered(f"{reply.model} wrote the row's own task", tokens=tokens)


def _object(text: str) -> dict[str, Any] | None:
    """Return the JSON object of a task, alone or in a code fence; None without one."""
    lines = text.strip().splitlines()
    if len(lines) > 2 and lines[0].startswith("```") and lines[-1].startswith("```"):
        text = "\n".join(lines[1:-1])
    try:
        item = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(item, dict) or not _is_text(item.get("prompt")) or not _is_text(item.get("answer")):
        return None
    return {"prompt": item["prompt"], "answer": str(item["answer"])}


def _is_text(value: Any) -> bool:
    return bool(str(value).strip()) if isinstance(value, str | int | float) else False
