"""Which language a response is in."""

import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from trinity_db.config import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.processors.step import Answer, Context, Drop, step
from trinity_db.settings import hint

NO_LANGUAGE = "zxx"  # ISO 639-2: code, formulas, numbers


@step()
class InLanguage:
    """Drops responses in other languages, by the package py3langid, which knows 139.

    A response that is too short to tell, or of which the package is not sure, passes, and so does one without
    a language, as code. `processing.detail` says so, to be counted. Related languages are confused easily:
    allow them together, as `hr`, `sr` and `bs`.

    Args:
        languages: Those that are allowed, by their codes in ISO 639, such as `en` or `zh`.
        letters: A response with fewer letters is too short to tell.
        probability: The row is dropped if another language is at least so probable.
    """

    def __init__(
        self,
        run: Context,
        *,
        languages: Annotated[Sequence[str], Field(min_length=1)],
        letters: Annotated[int, Field(ge=1)] = 20,
        probability: Annotated[float, Field(gt=0, le=1)] = 0.5,
    ) -> None:
        self._identifier = _identifier()
        self._allowed = {*languages, NO_LANGUAGE}
        self._letters = letters
        self._probability = probability

    @staticmethod
    def check(model: ModelConfig, *, languages: Sequence[str], **options: Any) -> None:
        """Find out before the run is created that the package is missing, or does not know a language.

        Raises:
            ConfigError: so it is.
        """
        if importlib.util.find_spec("py3langid") is None:
            raise ConfigError("in_language needs the package py3langid: pip install 'trinity-db[language]'.")
        known = sorted({*_identifier().labels} - {NO_LANGUAGE})
        for one in languages:
            if one not in known:
                raise ConfigError(f"in_language: py3langid knows no language '{one}'; {hint(one, known)}.")

    def __call__(self, response: str) -> Answer | Drop | None:
        """Why the row is dropped, or what could not be told."""
        num_letters = sum(map(str.isalpha, response))
        if num_letters < self._letters:
            return Answer(None, {"untold": "too_short", "letters": num_letters})
        language, probability = self._identifier.classify(response)
        found = {"language": language, "probability": round(probability, 4)}
        if language == NO_LANGUAGE:
            return Answer(None, {"untold": "no_language", **found})
        if language in self._allowed:
            return None
        if probability < self._probability:
            return Answer(None, {"untold": "not_sure", **found})
        return Drop("other_language", found)


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # here, because it loads numpy's tables

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
