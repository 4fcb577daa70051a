"""Steps of `synthesis`: models behind an endpoint that speaks OpenAI's protocol write tasks and answers.

Each is shown the row with the highest reward of a settled group.
"""

import json
from collections.abc import Mapping
from functools import partialmethod
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field

from trinity_db.config import ModelConfig
from trinity_db.imports.known_prompts import digest_of, prompt_of
from trinity_db.processors.judging.endpoint import (
    Endpoint,
    Reply,
    address,
    check_client,
    key_of,
    variable,
)
from trinity_db.processors.judging.question import tamed
from trinity_db.processors.step import Answer, Context, NotAnswered, Response, step

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
    """What these steps share: a model behind an endpoint, and which groups it is asked about.

    Each step is constructed like this, with defaults of its own.
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
        self._endpoint = Endpoint(url, model, body, key_of(self.name, key_env))
        self._instructions = instructions
        self._min_mean = min_mean
        self._max_mean = max_mean

    @classmethod
    def check(cls, model: ModelConfig, /, *, key_env: str | None, **options: Any) -> None:
        """Find out before the run is created that the model could not be asked.

        Raises:
            ConfigError: there is no key, or no aiohttp.
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
        """The model's answer, its description for the origin, and the tokens that it took."""
        messages = [
            {"role": "system", "content": self._instructions},
            {"role": "user", "content": asked(task) + more},
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


def asked(task: Mapping[str, Any]) -> str:
    """What a task asks, as material that can pose as no message of its own."""
    if "messages" in task:
        return tamed("\n".join(json.dumps(one, ensure_ascii=False) for one in task["messages"]))
    return tamed(str(task["prompt"]))


def written(text: str) -> str:
    """What a model wrote behind its thoughts."""
    return text.rpartition("</think>")[2].strip()


@step()
class Rewrite(_Writer):
    """A task in other words, with the answer and the other columns of its source.

    Args:
        url: Address of the endpoint up to its version, as http://localhost:8000/v1 for vLLM's server.
        model: Name under which the endpoint serves the model.
        key_env: Name of the environment variable that holds the endpoint's key. null: it wants none.
        instructions: What the model is told before it reads the task.
        min_mean: Smallest mean reward of the group. null: any.
        max_mean: Largest one. null: any.
        body: Further fields of each request.
    """

    name = "rewrite"
    __init__ = partialmethod(_Writer.__init__, instructions=REWRITE, min_mean=None, max_mean=None)

    async def __call__(self, task: Mapping[str, Any], group_mean: float | None) -> Answer | None:
        """The new prompt."""
        if not self._wants(group_mean):
            return None
        reply, detail, tokens = await self._write(task)
        prompt = written(reply.text)
        _check_new(task, prompt, reply, tokens)
        return Answer(prompt, detail, tokens)


@step()
class Harder(_Writer):
    """A harder task, with an answer by the model that wrote it. It has no other columns of its source.

    The answer may be wrong, as no one has checked it. What is no JSON object with both keys is asked for
    again.

    Args:
        url: Address of the endpoint up to its version, as http://localhost:8000/v1 for vLLM's server.
        model: Name under which the endpoint serves the model.
        key_env: Name of the environment variable that holds the endpoint's key. null: it wants none.
        instructions: What the model is told before it reads the task. It has to ask for the JSON object.
        min_mean: Smallest mean reward of the group, so that solved tasks get harder. null: any.
        max_mean: Largest one. null: any.
        body: Further fields of each request.
    """

    name = "harder"
    __init__ = partialmethod(_Writer.__init__, instructions=HARDER, min_mean=0.5, max_mean=None)

    async def __call__(self, task: Mapping[str, Any], group_mean: float | None) -> Answer | None:
        """The new task."""
        if not self._wants(group_mean):
            return None
        shown = f"\n\nIts answer: {tamed(str(task['answer']))}" if "answer" in task else ""
        reply, detail, tokens = await self._write(task, shown)
        made = _object(written(reply.text))
        if made is None:
            shown = " ".join(reply.text.split())
            message = f"{reply.model} wrote no JSON object with prompt and answer: {shown!r:.200}"
            raise NotAnswered(message, tokens=tokens)
        _check_new(task, made["prompt"], reply, tokens)
        return Answer(made, detail, tokens)


@step()
class Distilled(_Writer):
    """A teacher's answer to the row's task: an expert row in the data set of processors.made.data.

    Args:
        url: Address of the endpoint up to its version, as http://localhost:8000/v1 for vLLM's server.
        model: Name under which the endpoint serves the teacher.
        key_env: Name of the environment variable that holds the endpoint's key. null: it wants none.
        instructions: What the teacher is told before it reads the task.
        min_mean: Smallest mean reward of the group. null: any.
        max_mean: Largest one, so that a teacher answers what the policy cannot. null: any.
        body: Further fields of each request.
    """

    name = "distilled"
    __init__ = partialmethod(_Writer.__init__, instructions=DISTILLED, min_mean=None, max_mean=0.5)

    async def __call__(self, task: Mapping[str, Any], group_mean: float | None) -> Answer | None:
        """The teacher's answer."""
        if not self._wants(group_mean):
            return None
        reply, detail, tokens = await self._write(task)
        return Answer(Response(written(reply.text)), detail, tokens)


def _check_new(task: Mapping[str, Any], prompt: str, reply: Reply, tokens: int) -> None:
    """Find out that another try is needed, since equal rows get an answer that is kept.

    Raises:
        NotAnswered: the model wrote nothing, or the task that it was shown.
    """
    source = prompt_of(task)
    if "messages" in task:
        said = [one.get("content") for one in task["messages"] if one.get("role") == "user"]
        source = str(said[-1]) if said else source
    if not prompt.strip():
        raise NotAnswered(f"{reply.model} wrote nothing behind its thoughts", tokens=tokens)
    if digest_of(prompt) == digest_of(source):
        raise NotAnswered(f"{reply.model} wrote the row's own task", tokens=tokens)


def _object(text: str) -> dict[str, Any] | None:
    """The JSON object of a task, alone or in a fence of code; None where there is none."""
    lines = text.strip().splitlines()
    if len(lines) > 2 and lines[0].startswith("```") and lines[-1].startswith("```"):
        text = "\n".join(lines[1:-1])
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or not _is_text(found.get("prompt")) or not _is_text(found.get("answer")):
        return None
    return {"prompt": found["prompt"], "answer": str(found["answer"])}


def _is_text(value: Any) -> bool:
    return bool(str(value).strip()) if isinstance(value, str | int | float) else False
