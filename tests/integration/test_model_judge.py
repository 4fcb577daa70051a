"""The model judge, against an HTTP server that answers well, hangs, lies about JSON, dies or limits rates."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.judge_server import JudgeServer, judge_server, marks
from tests.support.rows import Scene, rollout
from tests.support.steps import load, processors
from tests.support.waiting import wait_until
from trinity_db.config.base import validate
from trinity_db.config.shared import ModelConfig
from trinity_db.errors import ConfigError
from trinity_db.processors.config import ProcessorsConfig
from trinity_db.processors.lists import async_step_runner, lists
from trinity_db.processors.lists.step import Context
from trinity_db.processors.service import Processors
from trinity_db.store import rewards

RUBRIC = """
version: 3
task_columns: [answer]
criteria:
  - {name: right, question: "Is it right?"}
  - {name: polite, question: "How polite is it?", scale: [1, 5], weight: 0}
"""
GOOD = marks(right=1, polite=4)
STATES = """
SELECT x.response, e.state::text
FROM trinity.experience e JOIN trinity.experience_text x ON x.experience_id = e.id
"""
EVENTS = """
SELECT x.response, v.name, v.value, v.weight, v.detail
FROM trinity.reward_event v JOIN trinity.experience e ON e.rollout_id = v.rollout_id
JOIN trinity.experience_text x ON x.experience_id = e.id
WHERE v.source = 'score' ORDER BY v.id
"""
ERRORS = """
SELECT x.response, p.step, p.error, count(*) FROM trinity.processing p
JOIN trinity.experience_text x ON x.experience_id = p.experience_id
WHERE p.outcome = 'failed' OR p.error IS NOT NULL GROUP BY 1, 2, 3 ORDER BY 1
"""


@pytest.fixture
def endpoint() -> Iterator[JudgeServer]:
    with judge_server() as running:
        yield running


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_step_runner, "FIRST_PAUSE", 0.01)


class Court:
    """Processors whose only step of score is the judge."""

    def __init__(self, scene: Scene, endpoint: JudgeServer, folder: Path) -> None:
        self.scene, self.endpoint = scene, endpoint
        self.rubric = folder / "rubric.yaml"
        self.rubric.write_text(RUBRIC)
        self.started: list[Processors] = []

    def config(self, limits: Any = None, **options: Any) -> dict[str, Any]:
        step = {"name": "model_judge", "rubric": str(self.rubric), "url": self.endpoint.url, "model": "judge"}
        limits = {"seconds": 1, "retries": 1, **(limits or {})}
        return {
            "clean": [],
            "score": [{**step, "limits": limits, **options}],
            "group": {"min_size": 1},
            "max_attempts": 2,
        }

    def explore(self, *responses: str) -> None:
        [group] = self.scene.claim(1, group_size=len(responses))
        self.scene.write([rollout(group, member, one) for member, one in enumerate(responses)])

    def judge(self, limits: Any = None, **options: Any) -> None:
        """Until each row has its verdict."""
        config = self.config(limits, **options)
        context = Context(self.scene.database, ModelConfig.model_validate({"path": "none"}), 1.0)
        steps = lists.prepare(lists.load(ProcessorsConfig.model_validate(config)), context)
        role = processors(self.scene, config, steps=steps)
        self.started.append(role)

        def is_judged() -> bool:
            while role.work():
                pass
            return not {"raw", "clean"} & {state for _, state in self.scene.rows(STATES)}

        wait_until(is_judged, "each row is judged")

    def close(self) -> None:
        for role in self.started:
            role.release()


@pytest.fixture
def court(scene: Scene, endpoint: JudgeServer, tmp_path: Path) -> Iterator[Court]:
    made = Court(scene, endpoint, tmp_path)
    yield made
    made.close()


def test_each_criterion_is_an_event_and_one_without_weight_stands_beside_the_reward(
    court: Court, endpoint: JudgeServer
) -> None:
    endpoint.says = {"fine": [GOOD], "poor": [marks(right=0, polite=2)]}
    court.explore("fine", "poor")
    court.judge({}, weight=2.0, prompt_price=10.0, completion_price=20.0)
    found = sorted(court.scene.rows(EVENTS), key=str)
    assert [row[:4] for row in found] == [
        ("fine", "model_judge/polite", 4.0, 0.0),
        ("fine", "model_judge/right", 1.0, 2.0),
        ("poor", "model_judge/polite", 2.0, 0.0),
        ("poor", "model_judge/right", 0.0, 2.0),
    ]
    assert found[0][4] == {
        "judge": "judge-7b",
        "rubric": 3,
        "words": "as to polite",
        "prompt_tokens": 60.0,
        "completion_tokens": 15.0,
        "cost": pytest.approx((120 * 10 + 30 * 20) / 1e6 / 2),
    }
    rows = court.scene.rows("SELECT reward FROM trinity.experience ORDER BY reward")
    assert rows == [(0.0,), (2.0,)]
    body = endpoint.asked[0]
    assert (body["model"], body["temperature"]) == ("judge", 0.0)
    assert body["response_format"]["json_schema"]["schema"]["required"] == ["right", "polite"]
    assert "answer\n" in body["messages"][1]["content"], "the task's column is shown"


def test_what_happens_to_each_row_when_a_judge_fails(
    court: Court, endpoint: JudgeServer, caplog: pytest.LogCaptureFixture
) -> None:
    lie = marks(right=7, polite=4)
    endpoint.says = {
        "well": [GOOD],
        "hangs": ["hang"],
        "hangs once": ["hang", GOOD],
        "lies": [lie],
        "lies once": [lie, GOOD],
        "dies": ["die"],
        "dies once": ["die", GOOD],
        "broken": [(503, {}, "overloaded")],
        "refused": [(400, {}, "the context is too long")],
        "limited once": [(429, {"Retry-After": "0.2"}, "slow down"), GOOD],
        "cut off": [[GOOD[:40], {"finish_reason": "length"}]],
        "silent": [[None, {"message": {"content": None, "refusal": "I will not"}}]],
    }
    court.explore(*endpoint.says)
    with caplog.at_level(logging.WARNING):
        court.judge({"seconds": 1, "retries": 1})
    dropped = {"hangs", "lies", "dies", "broken", "refused", "cut off", "silent"}
    assert dict(court.scene.rows(STATES)) == {
        one: "dropped" if one in dropped else "ready" for one in endpoint.says
    }
    events = court.scene.rows(EVENTS)
    assert {(response, value) for response, name, value, *_ in events if name == "model_judge/right"} == {
        (one, 1.0) for one in endpoint.says if one not in dropped
    }, "no failure is a zero"
    tried = {response: detail.get("failed_tries") for response, *_, detail in events}
    assert tried["well"] is None
    assert ["is invalid: the mark of 'right' is 7" in one for one in tried["lies once"]] == [True]
    assert len(tried["limited once"]) == len(tried["dies once"]) == 1
    errors = {response: error for response, _, error, _ in court.scene.rows(ERRORS)}
    assert set(errors) >= dropped
    for response, said in {
        "hangs": "it took more than 1 s",
        "lies": "the answer of judge-7b is invalid: the mark of 'right' is 7, not a whole number",
        "dies": "/v1/chat/completions:",
        "broken": "HTTP 503: overloaded",
        "refused": "HTTP 400: the context is too long",
        "cut off": "its answer was cut off",
        "silent": "it answers I will not",
    }.items():
        assert errors[response].startswith("model_judge"), errors[response]
        assert said in errors[response]
    assert "retrying in 0 s" in caplog.text
    about = [body["messages"][1]["content"] for body in endpoint.asked]
    tries = {one: sum(f" response\n{one}\n" in text for text in about) for one in endpoint.says}
    assert (tries["refused"], tries["lies"], tries["broken"]) == (2, 4, 4), "2 attempts, with 1 and 2 tries"


def test_the_key_goes_to_the_server_and_into_no_row(
    court: Court, endpoint: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURT_KEY", "sk-secret-1234")
    endpoint.says = {"fine": [GOOD], "poor": [(401, {}, "wrong key sk-secret-1234")]}
    court.explore("fine", "poor")
    court.judge(key_env="COURT_KEY")
    assert set(endpoint.keys) == {"Bearer sk-secret-1234"}
    [(_, _, error, _)] = [row for row in court.scene.rows(ERRORS) if row[0] == "poor"]
    assert "HTTP 401: wrong key ***" in error
    for table in ("step_list", "reward_event", "processing", '"drop"'):
        stored = court.scene.value(f"SELECT string_agg(t::text, ' ') FROM trinity.{table} t")
        assert "secret" not in (stored or "")


def test_equal_rows_cost_once_and_the_others_say_so(court: Court, endpoint: JudgeServer) -> None:
    endpoint.says = {"same": [GOOD]}
    court.explore("same", "same", "same")
    court.judge()
    details = [detail for *_, name, _, _, detail in court.scene.rows(EVENTS) if name.endswith("right")]
    assert sorted(detail.get("cached", False) for detail in details) == [False, True, True]
    assert len(endpoint.asked) == 1


def test_the_digest_covers_the_rubric_and_the_judge(court: Court) -> None:
    def digest(**options: Any) -> str:
        [step] = load("score", court.config(None, **options)["score"][0])
        return str(step.record()["digest"])

    before = digest()
    assert digest() == before
    assert digest(model="other") != before
    court.rubric.write_text(RUBRIC.replace("right?", "right, really?"))
    assert digest() != before


def test_a_rubric_that_changes_meanwhile_is_noticed(
    court: Court, endpoint: JudgeServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint.says = {"fine": [GOOD]}
    court.explore("fine", "fine")
    court.judge()
    court.rubric.write_text(RUBRIC + "instructions: Be strict.\n")
    monkeypatch.setattr("trinity_db.processors.lists.changed_files.LOOK_SECONDS", 0.0)
    with caplog.at_level(logging.WARNING):
        court.started[0].work()
    assert f"{court.rubric} changed; this process continues with the loaded content" in caplog.text


def test_a_judge_that_cannot_be_asked_is_said_before_the_run(court: Court) -> None:
    [step] = load("score", court.config()["score"][0])
    model = ModelConfig.model_validate({"path": "none"})
    step.check(model)
    for options, said in (
        ({"key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY is not set"),
        ({"rubric": "none.yaml"}, "no such rubric"),
    ):
        [step] = load("score", {**court.config()["score"][0], **options})
        with pytest.raises(ConfigError, match=said):
            step.check(model)
    for options, said in (
        ({"key_env": "sk-secret-1234"}, "name an environment variable"),
        ({"url": "http://ann:secret@host/v1"}, "must not contain a password"),
        ({"url": "host/v1"}, "url has the form"),
        ({"rubrik": "x"}, "did you mean 'rubric'"),
    ):
        score = [{**court.config()["score"][0], **options}]
        with pytest.raises(ConfigError, match=said) as error:
            validate(ProcessorsConfig, {"score": score}, "run.yaml")
        assert "secret" not in str(error.value)


def test_agreement_with_people_is_a_view(court: Court, endpoint: JudgeServer) -> None:
    mark = [1, 2, 2, 3, 4, 5, 5, 4, 1, 3]
    label = [1, 2, 3, 3, 5, 5, 4, 4, 2, 1]
    endpoint.says = {f"r{n}": [marks(right=1, polite=m)] for n, m in enumerate(mark)}
    court.explore(*endpoint.says, "unlabelled")
    endpoint.says["unlabelled"] = [GOOD]
    court.judge()
    ids = dict(court.scene.rows("SELECT x.response, x.experience_id FROM trinity.experience_text x"))
    told = [(f"r{n}", value) for n, value in enumerate(label)]
    with court.scene.database.transaction() as tx:
        said = [("r0", 5), *told]  # r0 is corrected: of each name the latest counts
        rewards.judge(
            tx, [rewards.Judgement(ids[one], v, "ann/polite", "human", "ann", 0.0) for one, v in said]
        )
    [row] = court.scene.rows(
        "SELECT name, judge, source, label, rows, equal, kappa, pearson, spearman, excess "
        "FROM trinity.agreement_view"
    )
    assert row[:5] == ("model_judge/polite", "judge-7b", "human", "ann/polite", 10)
    assert row[5:] == pytest.approx(_agreement(np.array(mark, float), np.array(label, float)))
    assert court.scene.rows("SELECT DISTINCT reward FROM trinity.experience") == [(1.0,)], (
        "labels stand beside"
    )


def _agreement(mark: Any, label: Any) -> list[float]:
    """Share equal, Cohen's kappa, both correlations and the excess, by their definitions."""

    def ranks(values: Any) -> Any:
        return np.array([(values < one).sum() + (values == one).sum() / 2 for one in values])

    equal = np.mean(mark == label)
    chance = sum(np.mean(mark == one) * np.mean(label == one) for one in range(1, 6))
    pearson = np.corrcoef(mark, label)[0, 1]
    spearman = np.corrcoef(ranks(mark), ranks(label))[0, 1]
    return [equal, (equal - chance) / (1 - chance), pearson, spearman, np.mean(mark - label)]
