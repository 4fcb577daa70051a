"""Language identification of responses."""

import importlib.util
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from trinity_db.config.base import hint
from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.processors.lists.step import Answer, Context, Drop, step

NO_LANGUAGE = "zxx"  # ISO 639-2: code, formulas, numbers


@step()
class InLanguage:
    """Drops responses in other languages, using the package py3langid, which has 139 languages.

    Responses that are too short, identified with low confidence, or without a language, such as code, pass;
    `processing.detail` records the reason, so that they can be counted. Related languages are easily
    confused: allow them together, such as `hr`, `sr` and `bs`.

    Args:
        languages: ISO 639 codes of the allowed languages, such as `en` or `zh`.
        letters: Fewer letters are too few to identify a language.
        probability: The row is dropped if another language is at least this probable.
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
        """Check before the run is created that py3langid is installed and has the languages.

        Raises:
            ConfigError: if not.
        """
        if importlib.util.find_spec("py3langid") is None:
            raise ConfigError("in_language needs the package py3langid: pip install 'trinity-db[language]'.")
        known = sorted({*_identifier().labels} - {NO_LANGUAGE})
        for language in languages:
            if language not in known:
                raise ConfigError(
                    f"in_language: py3langid has no language '{language}'; {hint(language, known)}."
                )

    def __call__(self, response: str) -> Answer | Drop | None:
        """Return a drop, or the reason why the language was not identified."""
        num_letters = sum(map(str.isalpha, response))
        if num_letters < self._letters:
            return Answer(None, {"untold": "too_short", "letters": num_letters})
        language, probability = self._identifier.classify(response)
        identified = {"language": language, "probability": round(probability, 4)}
        if language == NO_LANGUAGE:
            return Answer(None, {"untold": "no_language", **identified})
        if language in self._allowed:
            return None
        if probability < self._probability:
            return Answer(None, {"untold": "not_sure", **identified})
        return Drop("other_language", identified)


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # here, because it loads numpy's tables

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
