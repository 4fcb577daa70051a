"""The clean step that tells languages apart, by a table of sentences in languages that are known."""

from collections.abc import Callable
from typing import cast

import pytest

from tests.support.steps import load, verdicts
from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.processors.lists.step import Context, Step
from trinity_db.schema.states import Outcome

ENGLISH = "First we add the twelve apples and the fifteen pears, so there are twenty-seven pieces of fruit."
SENTENCES = {
    "en": ENGLISH,
    "de": "Zuerst zählen wir die zwölf Äpfel und fünfzehn Birnen zusammen, das sind viele Früchte.",
    "fr": "Nous ajoutons d'abord les douze pommes aux quinze poires, ce qui fait vingt-sept fruits en tout.",
    "es": "Primero sumamos las doce manzanas y las quince peras, así que hay veintisiete frutas en total.",
    "ru": "Сначала складываем двенадцать яблок и пятнадцать груш, всего получается двадцать семь фруктов.",
    "zh": "首先我们把十二个苹果和十五个梨加在一起，所以一共有二十七个水果，这就是这道题的答案。",
    "ja": "まず、りんご十二個と梨十五個を足します。ですから、果物は全部で二十七個になります。",
    "fi": "Lasketaan ensin yhteen kaksitoista omenaa ja viisitoista päärynää, joten hedelmiä on monta.",
}
MODEL = ModelConfig.model_validate({"path": "none"})


@pytest.fixture(scope="module")
def in_language() -> Callable[..., Step]:
    def prepared(**options: object) -> Step:
        [step] = load("clean", {"name": "in_language", **options})
        return step.prepared(cast(Context, None))  # it asks its run for nothing

    return prepared


def test_each_sentence_passes_where_its_language_is_allowed_and_no_other(
    in_language: Callable[..., Step],
) -> None:
    for allowed in (["en"], ["de", "fr"], ["zh"]):
        found = verdicts(
            "clean", [in_language(languages=allowed)], *({"response": text} for text in SENTENCES.values())
        )
        passed = [v.outcome == Outcome.PASSED for v in found]
        assert passed == [language in allowed for language in SENTENCES]
        dropped = [v for v in found if v.outcome == Outcome.DROPPED]
        assert {v.reason for v in dropped} == {"other_language"}
        assert [v.detail and v.detail["language"] for v in dropped] == [
            one for one in SENTENCES if one not in allowed
        ]


@pytest.mark.parametrize(
    ("response", "why"),
    [
        ("42", "too_short"),
        ("", "too_short"),
        ("Die Antwort: 4", "too_short"),
        ("El gato está en la casa grande", "not_sure"),
    ],
)
def test_what_cannot_be_told_passes_and_the_row_says_so(
    in_language: Callable[..., Step], response: str, why: str
) -> None:
    [verdict] = verdicts("clean", [in_language(languages=["en"], probability=0.99)], {"response": response})
    assert verdict.outcome == Outcome.PASSED
    assert verdict.notes["in_language"]["untold"] == why
    assert ("letters" in verdict.notes["in_language"]) == (why == "too_short")


def test_an_unknown_language_is_refused_with_the_nearest_that_is_known(
    in_language: Callable[..., Step],
) -> None:
    [step] = load("clean", {"name": "in_language", "languages": ["en", "dee"]})
    with pytest.raises(ConfigError, match=r"in_language: py3langid has no language 'dee'; did you mean 'de'"):
        step.check(MODEL)


def test_without_the_package_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    [step] = load("clean", {"name": "in_language", "languages": ["en"]})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"^in_language needs the package py3langid: pip install .*language"
    ):
        step.check(MODEL)
