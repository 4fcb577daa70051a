"""A model judge, which marks responses by a rubric."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from trinity_db.config.shared import ModelConfig
from trinity_db.processors.judging import question
from trinity_db.processors.judging import rubric as rubrics
from trinity_db.processors.judging.answers import Mark, Unreadable, read
from trinity_db.processors.judging.endpoint import (
    JudgeEndpoint,
    Reply,
    address,
    check_client,
    key_of,
    variable,
)
from trinity_db.processors.lists.step import Answer, Context, NotAnswered, step


@step()
class ModelJudge:
    """Scores responses by a rubric, using a model behind an endpoint with OpenAI's chat completions API.

    Each criterion is a separate reward event, model_judge/NAME. Its detail records the judge's explanation
    and model, the version of the rubric, and tokens and cost of the request, shared evenly among the
    criteria.

    If a mark is missing, has the wrong type or is out of range, the request is retried. After the last retry
    the row fails and has no reward. The judge sees the policy's text as material, so that it cannot imitate
    the rubric.

    Args:
        rubric: YAML file with the criteria.
        url: Address of the endpoint including its version, such as http://localhost:8000/v1 for vLLM's
            server.
        model: Name under which the endpoint serves the judge.
        key_env: Name of the environment variable with the endpoint's key. null: no key.
        form: How JSON output is requested: by a schema, by json_object, or only in words, for endpoints that
            support neither.
        body: Further fields of each request. For a judge without a temperature, use {max_completion_tokens:
            2048}.
        prompt_price: Cost of a million prompt tokens, in any currency.
        completion_price: Cost of a million completion tokens.
    """

    def __init__(
        self,
        run: Context,
        *,
        rubric: Path,
        url: Annotated[str, AfterValidator(address)],
        model: Annotated[str, Field(min_length=1)],
        key_env: Annotated[str | None, AfterValidator(variable)] = None,
        form: Literal["schema", "json_object", "words"] = "schema",
        body: Mapping[str, Any] = {"temperature": 0.0, "max_tokens": 2048},
        prompt_price: Annotated[float, Field(ge=0, le=1e6)] = 0.0,
        completion_price: Annotated[float, Field(ge=0, le=1e6)] = 0.0,
    ) -> None:
        self._rubric = rubrics.load(rubric)
        self._endpoint = JudgeEndpoint(url, model, body, key_of("model_judge", key_env))
        self._prices = prompt_price, completion_price
        self._format: dict[str, Any] = {}
        if form == "json_object":
            self._format = {"response_format": {"type": "json_object"}}
        elif form == "schema":
            named = {"name": "marks", "strict": True, "schema": question.schema(self._rubric)}
            self._format = {"response_format": {"type": "json_schema", "json_schema": named}}

    @staticmethod
    def check(model: ModelConfig, /, *, rubric: Path, key_env: str | None, **options: Any) -> None:
        """Check before the run is created that the judge can be called.

        Raises:
            ConfigError: if the rubric, the key or aiohttp is missing.
        """
        check_client("model_judge")
        rubrics.load(rubric)
        key_of("model_judge", key_env)

    @staticmethod
    def files(*, rubric: Path, **options: Any) -> Sequence[Path]:
        """Return the files, other than its code, that the marks depend on."""
        return [rubric.expanduser()]

    async def __call__(
        self,
        prompt: str,
        messages: Sequence[Mapping[str, Any]] | None,
        response: str,
        task: Mapping[str, Any],
    ) -> Answer:
        """Return a mark for each criterion."""
        shown = self._rubric.shown(task)
        material = {"prompt": question.conversation(prompt, messages), **shown, "response": response}
        reply = await self._endpoint.ask(question.messages(self._rubric, material), **self._format)
        tokens = reply.prompt_tokens + reply.completion_tokens
        try:
            marks = read(reply.text, self._rubric)
        except Unreadable as error:
            raise NotAnswered(f"the answer of {reply.model} is invalid: {error}", tokens=tokens) from None
        criteria = self._rubric.criteria
        value = {
            criterion.name: Answer(
                marks[criterion.name].value, _words(marks[criterion.name]), 0, criterion.weight
            )
            for criterion in criteria
        }
        return Answer(value, self._about(reply), tokens)

    async def close(self) -> None:
        """Close the connections."""
        await self._endpoint.close()

    def _about(self, reply: Reply) -> dict[str, Any]:
        prompt_price, completion_price = self._prices
        cost = (reply.prompt_tokens * prompt_price + reply.completion_tokens * completion_price) / 1e6
        share = 1 / len(self._rubric.criteria)
        return {
            "judge": reply.model,
            "rubric": self._rubric.version,
            "prompt_tokens": reply.prompt_tokens * share,
            "completion_tokens": reply.completion_tokens * share,
            "cost": cost * share,
        }


def _words(mark: Mark) -> dict[str, Any]:
    return {"words": mark.words}
