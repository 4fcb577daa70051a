"""Workflows: found by name or in a file, and what the one that comes with the project yields."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.echo import Echo
from trinity_db.arrays import Payload
from trinity_db.errors import ConfigError
from trinity_db.explorer.config import ExplorerConfig
from trinity_db.explorer.engine import Completion, Request
from trinity_db.explorer.workflow import load, single_turn
from trinity_db.store.groups import ClaimedGroup, Rollout, Step

OWN = """
from __future__ import annotations

from dataclasses import dataclass

@dataclass
class State:
    turns: int

def mine(engine, groups, *, template, config, seed, should_stop):
    yield [State(seed)]

def of_an_older_kind(engine, groups, template):
    yield []
"""


def group(number: int, prompt: str) -> ClaimedGroup:
    return ClaimedGroup(number, attempt=1, task={"prompt": prompt}, members=[0, 2])


def attempt(groups: Sequence[ClaimedGroup], answers: Iterator[bool] | None = None) -> list[list[Rollout]]:
    return list(
        single_turn(
            Echo(version=7),
            groups,
            template="{prompt}",
            config=ExplorerConfig(),
            seed=0,
            should_stop=lambda: next(answers) if answers else False,
        )
    )


def test_rollouts_that_end_together_are_yielded_together() -> None:
    yielded = attempt([group(1, "123"), group(2, "4"), group(3, "567")])
    assert [[(r.group.id, r.member, r.response) for r in ended] for ended in yielded] == [
        [(2, 0, "4"), (2, 2, "4")],
        [(1, 0, "321"), (1, 2, "321"), (3, 0, "765"), (3, 2, "765")],
    ]
    [one, *_] = yielded[0]
    assert one.payload is not None
    assert one.payload.versions is not None
    assert one.payload.versions.tolist() == [7]


def test_the_greedy_member_of_a_group_is_asked_for_greedily() -> None:
    asked: list[tuple[list[int], bool]] = []

    class Listening(Echo):
        def generate(self, requests: Sequence[Request], **options: Any) -> Iterator[list[Completion]]:
            asked.extend(([*request.prompt_ids], request.greedy) for request in requests)
            return super().generate(requests, **options)

    groups = [replace(group(1, "12"), greedy=2), group(2, "4")]
    options: Any = {"template": "{prompt}", "config": ExplorerConfig(), "should_stop": lambda: False}
    list(single_turn(Listening(), groups, seed=0, **options))
    assert asked == [([1, 2], False), ([1, 2], True), ([4], False), ([4], False)]


def test_a_prompt_that_does_not_fit_fails_the_members_of_its_group_and_no_other() -> None:
    failed, finished = attempt([group(1, "12345"), group(2, "6")])
    assert {(r.group.id, r.member, r.error) for r in failed} == {
        (1, member, "prompt of 5 tokens does not fit the context of 5") for member in (0, 2)
    }
    assert {(r.group.id, r.error) for r in finished} == {(2, None)}


def test_a_conversation_that_the_chat_template_refuses_fails_its_group_and_no_other() -> None:
    conversations = [[{"role": role, "content": "6"}] for role in ("system", "user")]
    groups = [
        replace(group(number, ""), task={"messages": messages})
        for number, messages in enumerate(conversations, 1)
    ]
    failed, finished = attempt(groups)
    assert [(r.group.id, r.member, r.prompt) for r in failed] == [(1, 0, ""), (1, 2, "")]
    assert {r.error for r in failed} == {"The chat template refuses the conversation: no system, please"}
    assert [(r.group.id, r.response) for r in finished] == [(2, "6"), (2, "6")]


def test_what_has_not_ended_when_it_shall_stop_is_not_yielded() -> None:
    yielded = attempt([group(1, "123"), group(2, "4")], iter([False, True]))
    assert [[r.group.id for r in ended] for ended in yielded] == [[2, 2]]


def test_the_workflow_that_comes_with_the_project_is_known_by_its_name() -> None:
    assert load("single_turn") is single_turn


def test_an_unknown_workflow_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no workflow 'single_trun'; did you mean 'single_turn'\?"):
        load("single_trun")


def test_a_workflow_of_ones_own_is_loaded_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "json.py"  # also one that is called like a module
    path.write_text(OWN)
    options: Any = dict.fromkeys(("template", "config", "should_stop"))
    [[state]] = load(f"{path}:mine")(Echo(), [], seed=3, **options)
    assert vars(state) == {"turns": 3}
    with pytest.raises(ConfigError, match=r"Workflow .* has no function 'mime'; did you mean 'mine'\?"):
        load(f"{path}:mime")
    with pytest.raises(ConfigError, match=r"Workflow .*unexpected keyword.*called with \(engine, groups, \*"):
        load(f"{path}:of_an_older_kind")
    with pytest.raises(ConfigError, match="there is no file"):
        load(f"{tmp_path}/other.py:mine")


def test_a_file_that_cannot_be_loaded_is_named_with_its_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"broken.py cannot be loaded: ZeroDivisionError"):
        load(f"{path}:mine")


def test_a_workflow_is_found_without_the_heavy_libraries() -> None:
    program = (
        "import sys; from trinity_db.explorer.workflow import load; load('single_turn');"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_rollout_has_sampled_tokens_or_an_error() -> None:
    now = datetime.now(UTC)
    written = Payload(np.arange(3, dtype=np.int32), np.array([False, True, True]))
    sampled = Payload(written.token_ids, written.action_mask, np.zeros(2, np.float32), np.zeros(2, np.int32))
    one = Step("1", "2", sampled)
    for payload, error, steps in ((None, None, ()), (sampled, "failed", ()), (sampled, None, [one])):
        with pytest.raises(ValueError, match="a payload, or steps that each have one, or an error"):
            Rollout(group(1, "1"), 0, now, now, payload=payload, error=error, steps=steps)
    for payload, steps in ((written, []), (None, [one, Step("1", "2", written)])):
        with pytest.raises(ValueError, match="log-probability and version"):
            Rollout(group(1, "1"), 0, now, now, payload=payload, steps=steps)
    assert Rollout(group(1, "1"), 0, now, now, "1", "2", sampled).all_steps == [one]


@pytest.mark.parametrize("earned", [float("nan"), float("inf"), -1e101])
def test_what_a_step_earned_is_a_number(earned: float) -> None:
    sampled = Payload(
        np.arange(1, dtype=np.int32), np.ones(1, bool), *(np.zeros(1, kind) for kind in ("f4", "i4"))
    )
    with pytest.raises(ValueError, match="The reward of a step is"):
        Step("1", "2", sampled, reward=earned)
