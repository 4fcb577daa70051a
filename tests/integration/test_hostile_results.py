"""Results that no database takes: they drop or fail their row, and the processor goes on."""

from pathlib import Path
from typing import Any

from tests.support.rows import Scene, rollout
from tests.support.steps import process
from trinity_db.processors.lists.results import LONGEST_REASON

CLEAN = r"""
from trinity_db.processors.lists.step import Answer, Drop

class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")

RESULTS = {
    "nul": "x\x00y",
    "half": "\ud800",
    "long": "why " * 500_000,
    "nan": Drop("x", {"a": float("nan")}),
    "deep nul": Drop("x", {"a\x00": ["b\x00"]}),
    "set": Drop("x", {"a": {1}}),
    "huge": Drop("x", {"a": 10**400}),
    "beyond": Drop("x", {"a": 10**5000}),
    "no text": Drop(5),
    "mute": Mute(),
    "number": 5,
}

def step(response):
    return RESULTS.get(response)
"""
DROPPED: dict[str, tuple[str, Any]] = {
    "nul": ("xy", None),
    "half": ("?", None),
    "nan": ("x", {"a": "nan"}),
    "deep nul": ("x", {"a": ["b"]}),
    "set": ("x", {"a": "{1}"}),
    "huge": ("x", {"a": str(10**400)}),
}
SCORE = r"""
from trinity_db.processors.lists.step import Answer

RESULTS = {
    "nul": {"a\x00": 1.0},
    "half": {"\ud800": 1.0},
    "long": {"x" * 5_000_000: 1.0},
    "weight": {"a": Answer(1.0, weight=float("nan"))},
    "no weight": {"a": Answer(1.0, weight="much")},
}

def step(response):
    return RESULTS.get(response, 1.0)
"""


def explore(scene: Scene, *responses: str) -> None:
    """Groups with these responses, each with one that says nothing bad."""
    for response in responses:
        [group] = scene.claim(1)
        scene.write([rollout(group, group.members[0], response), rollout(group, group.members[1], "good")])


def test_a_reason_that_no_database_takes_drops_its_row(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CLEAN)
    responses = [*DROPPED, "long"]
    explore(scene, *responses)
    process(scene, {"clean": [f"{tmp_path}/own.py:step"], "group": {"min_size": 1}})
    found = {
        response: (reason, detail)
        for response, reason, detail in scene.rows(
            'SELECT x.response, d.reason, d.detail FROM trinity."drop" d'
            " JOIN trinity.experience_text x USING (experience_id)"
        )
    }
    reason, detail = found.pop("long")
    assert reason == ("why " * 500_000)[:LONGEST_REASON] + "…"
    assert detail == {"reason": "why " * 500_000}
    assert found == DROPPED


def test_what_cannot_be_read_fails_its_row(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(CLEAN)
    responses = ["beyond", "no text", "mute", "number"]
    explore(scene, *responses)
    process(scene, {"clean": [f"{tmp_path}/own.py:step"], "group": {"min_size": 1}, "max_attempts": 1})
    assert failed(scene).keys() == set(responses)


def test_a_reward_that_no_database_takes_fails_its_row(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(SCORE)
    responses = ["nul", "half", "long", "weight", "no weight"]
    explore(scene, *responses)
    process(scene, {"score": [f"{tmp_path}/own.py:step"], "group": {"min_size": 1}, "max_attempts": 1})
    errors = failed(scene)
    assert errors.keys() == set(responses)
    assert all("a name has at most" in errors[response] for response in ("nul", "half", "long"))
    assert "the weight nan" in errors["weight"]


def failed(scene: Scene) -> dict[str, str]:
    """What was said of each failed row, by its response."""
    return dict(
        scene.rows(
            "SELECT x.response, p.error FROM trinity.processing p"
            " JOIN trinity.experience_text x USING (experience_id) WHERE p.outcome = 'failed'"
        )
    )
