"""Another model that marks responses by a rubric."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from trinity_db.config import ModelConfig
from trinity_db.processors.judging import question
from trinity_db.processors.judging import rubric as rubrics
from trinity_db.processors.judging.answers import Mark, Unreadable, read
from trinity_db.processors.judging.endpoint import Endpoint, Reply, address, check_client, key_of, variable
from trinity_db.processors.step import Answer, Context, NotAnswered, step


@step()
class ModelJudge:
    """Marks by a rubric, given by a model behind an endpoint that speaks OpenAI's chat completions.

    Each criterion is a reward event of its own, model_judge/NAME. Its detail has the judge's words and model,
    the version of the rubric, and tokens and cost of the request, shared evenly among the criteria.

    An answer without a mark by each criterion, of the right type and in its scale, is asked for again. In the
    end the row fails and has no reward. What the policy wrote is shown to the judge as material, so that it
    cannot pose as the rubric.

    Args:
        rubric: YAML file with the criteria.
        url: Address of the endpoint up to its version, as http://localhost:8000/v1 for vLLM's server.
        model: Name under which the endpoint serves the judge.
        key_env: Name of the environment variable that holds the endpoint's key. null: it wants none.
        form: How the endpoint is asked for JSON: by a schema, by json_object, or in words alone, where it
            knows neither.
        body: Further fields of each request. For a judge without a temperature, give {max_completion_tokens:
            2048}.
        prompt_price: Cost of a million tokens of prompts, in a currency of yours.
        completion_price: Cost of a million tokens of answers.
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
        self._endpoint = Endpoint(url, model, body, key_of("model_judge", key_env))
        self._prices = prompt_price, completion_price
        self._format: dict[str, Any] = {}
        if form == "json_object":
            self._format = {"response_format": {"type": "json_object"}}
        elif form == "schema":
            named = {"name": "marks", "strict": True, "schema": question.schema(self._rubric)}
            self._format = {"response_format": {"type": "json_schema", "json_schema": named}}

    @staticmethod
    def check(model: ModelConfig, /, *, rubric: Path, key_env: str | None, **options: Any) -> None:
        """Find out before the run is created that the judge could not be asked.

        Raises:
            ConfigError: there is no rubric, no key, or no aiohttp.
        """
        check_client("model_judge")
        rubrics.load(rubric)
        key_of("model_judge", key_env)

    @staticmethod
    def files(*, rubric: Path, **options: Any) -> Sequence[Path]:
        """The files that its marks follow from, beside its code."""
        return [rubric.expanduser()]

    async def __call__(
        self,
        prompt: str,
        messages: Sequence[Mapping[str, Any]] | None,
        response: str,
        task: Mapping[str, Any],
    ) -> Answer:
        """A mark by each criterion."""
        shown = self._rubric.shown(task)
        material = {"prompt": question.conversation(prompt, messages), **shown, "response": response}
        reply = await self._endpoint.ask(question.messages(self._rubric, material), **self._format)
        tokens = reply.prompt_tokens + reply.completion_tokens
        try:
            marks = read(reply.text, self._rubric)
        except Unreadable as error:
            raise NotAnswered(f"the answer of {reply.model} cannot be read: {error}", tokens=tokens) from None
        criteria = self._rubric.criteria
        value = {
            one.name: Answer(marks[one.name].value, _words(marks[one.name]), 0, one.weight)
            for one in criteria
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
