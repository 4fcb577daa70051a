"""What near duplicates are found by: words, runs of them, and signatures that are the same everywhere."""

import pytest

from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.processors.jobs.words import runs, words
from trinity_db.processors.steps.near_duplicates import HASHES, NotNearDuplicate, _signatures, band_rows
from trinity_db.store.neighbours import jaccard


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The answer,\n IS 4.5!", ["the", "answer", "is", "4", "5"]),
        ("答案是四 ok", ["答", "案", "是", "四", "ok"]),
        ("Straße ﬁne", ["strasse", "fine"]),
        ("x_1 = \\frac{1}{2}", ["x", "1", "frac", "1", "2"]),
        (" \n+-*/", []),
    ],
)
def test_words_are_letters_and_digits_and_each_sign_of_a_script_without_spaces(
    text: str, found: list[str]
) -> None:
    assert words(text) == found


def test_fewer_words_than_a_run_are_one_run() -> None:
    assert runs(["a", "b", "c"], 2) == ["a b", "b c"]
    assert runs(["a", "b"], 2) == runs(["a", "b"], 5) == ["a b"]
    assert runs([], 2) == []


def test_signatures_agree_by_the_share_that_sets_have_in_common_and_in_every_process() -> None:
    one = frozenset(f"run {number}" for number in range(400))
    other = frozenset(f"run {number}" for number in range(100, 500))
    first, second = _signatures([one, other])
    exact = jaccard(one, other)
    assert exact == 300 / 500
    # Five standard deviations of a share of HASHES trials.
    assert abs((first == second).mean() - exact) < 5 * (exact * (1 - exact) / HASHES) ** 0.5
    # Another number would make the index of every store worthless.
    assert [int(number) for number in first[:3]] == PINNED


PINNED = [2816554, 82088341, 10029757]


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.8, 0.9, 0.95, 1.0])
def test_a_row_right_at_the_threshold_is_found_by_the_bands(threshold: float) -> None:
    rows = band_rows(threshold)

    def missed(size: int) -> float:
        chance = 1.0
        for _ in range(HASHES // size):
            chance *= 1 - threshold**size
        return chance

    assert missed(rows) <= 0.005
    assert rows == HASHES or missed(rows + 1) > 0.005


def test_without_the_package_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        ConfigError, match=r"^not_near_duplicate needs the package datasketch: pip .*duplicates"
    ):
        NotNearDuplicate.check(ModelConfig.model_validate({"path": "none"}))
