"""Episodes that verifiers' own classes write, with branches, and what an import makes of them."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.others.environments.test_verifiers import PYTHON
from tests.support.rows import Scene
from trinity_db.api.importing import Import
from trinity_db.postgres.connection import Database
from trinity_db.store import payloads

# Two groups of two episodes. Each trace calls a tool; a second branch begins after its first answer.
# A line for each episode, and one for what the package says of the branches and the reward of its trace.
WRITE = """
import json, random
from verifiers.v1.episode import GroupInfo, WireEpisode
from verifiers.v1.graph import MessageNode
from verifiers.v1.trace import WireTrace
from verifiers.v1.types import AssistantMessage, SystemMessage, ToolCall, ToolMessage, UserMessage

draw = random.Random(0)

def node(parent, message, sampled=0):
    tokens = draw.choices(range(50), k=3 + sampled)
    logprobs = [-draw.random() for _ in range(sampled)]
    mask = [False] * 3 + [True] * sampled
    return MessageNode(
        parent=parent, message=message, sampled=sampled > 0, token_ids=tokens, mask=mask, logprobs=logprobs
    )

def trace(task, trainable):
    call = ToolCall(id="c1", name="add", arguments='{"a": 1}')
    nodes = [
        node(None, SystemMessage(content="Be brief.")),
        node(0, UserMessage(content=task["data"]["prompt"])),
        node(1, AssistantMessage(tool_calls=[call]), sampled=2),
        node(2, ToolMessage(tool_call_id="c1", content="42")),
        node(3, AssistantMessage(content="It is 42."), sampled=4),
        node(2, UserMessage(content="Summarize.")),
        node(5, AssistantMessage(content="A sum."), sampled=3),
    ]
    made = WireTrace(
        task=task, agent={"config": {}, "name": "solver" if trainable else "judge", "trainable": trainable},
        nodes=nodes, ok=True,
    )
    made.record_reward("right", draw.random())
    made.record_reward("short", draw.random(), weight=0.5)
    return made

for number in range(4):
    task = {"type": "Sum", "data": {"prompt": "17 + 25?", "answer": "42"}}
    traces = [trace(task, True), trace(task, False)]
    episode = WireEpisode(task=task, group=GroupInfo(id=f"g{number % 2}"), ok=True, traces=traces)
    branches = [
        {"tokens": b.token_ids, "mask": b.sampled_mask, "logprobs": b.logprobs} for b in traces[0].branches
    ]
    print(json.dumps(episode.to_record()))
    print(json.dumps({"branches": branches, "reward": traces[0].reward}))
"""
TASKS = """
SELECT DISTINCT t.payload - 'group' FROM trinity.task t JOIN trinity.taskset s ON s.id = t.taskset_id
WHERE s.name = 'theirs'
"""
RESPONSES = """
SELECT x.response FROM trinity.experience_text x JOIN trinity.experience e ON e.id = x.experience_id
JOIN trinity.run r ON r.id = e.run_id WHERE r.name = 'theirs'
"""
IDS = "SELECT id FROM trinity.experience WHERE rollout_id = %s ORDER BY step"
ROLLOUTS = """
SELECT e.rollout_id, e.group_id, min(e.reward), max(e.reward) FROM trinity.experience e
WHERE e.run_id = (SELECT r.id FROM trinity.run r WHERE r.name = 'theirs') GROUP BY 1, 2 ORDER BY 1
"""


@pytest.fixture
def scene(database_url: str) -> Iterator[Scene]:
    with closing(Database(database_url)) as database:
        yield Scene.open(database)


@pytest.fixture(scope="module")
def written() -> list[dict[str, Any]]:
    lines = subprocess.run([PYTHON, "-c", WRITE], capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


def imported(scene: Scene, episodes: list[dict[str, Any]], path: Path, kind: Any = "traces") -> Import:
    path.write_text("".join(json.dumps(episode) + "\n" for episode in episodes))
    rows = Import(kind, "theirs", None, None)
    summary = rows.write(scene.database, rows.file(path), lambda done, total: None)
    assert (rows.format, summary.rejected) == ("verifiers", 0), summary.reasons
    assert summary.added == len(episodes)
    return rows


def test_each_branch_has_its_tokens_and_each_sampled_token_is_trained_once(
    scene: Scene, written: list[dict[str, Any]], tmp_path: Path
) -> None:
    imported(scene, written[::2], tmp_path / "theirs.jsonl")
    rollouts = scene.rows(ROLLOUTS)
    assert len({group for _, group, *_ in rollouts}) == 2, "the groups of the episodes, of one task"
    for (rollout, _, *rewards), known in zip(rollouts, written[1::2], strict=True):
        assert rewards == pytest.approx([known["reward"]] * 2)
        found = payloads.read(scene.database, scene.values(IDS, rollout)).values()
        assert [one.token_ids.tolist() for one in found] == [branch["tokens"] for branch in known["branches"]]
        first, second = found
        assert first.action_mask.tolist() == known["branches"][0]["mask"]
        shared = 3 * 3 + 2  # tokens of the nodes that both branches have
        assert second.action_mask.tolist() == [False] * shared + known["branches"][1]["mask"][shared:]
        for one, branch in zip(found, known["branches"], strict=True):
            assert one.logprobs is not None
            theirs = [
                value
                for value, is_trained in zip(branch["logprobs"], one.action_mask, strict=True)
                if is_trained
            ]
            assert one.logprobs.tolist() == pytest.approx(theirs, abs=1e-4)
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "17 + 25?"}
    [payload] = scene.values(TASKS)
    assert (payload["messages"], payload["answer"]) == ([system, user], "42")


def test_their_last_branches_are_conversations_with_rewards(
    scene: Scene, written: list[dict[str, Any]], tmp_path: Path
) -> None:
    imported(scene, written[::2], tmp_path / "theirs.jsonl", "trajectories")
    assert len(scene.rows(ROLLOUTS)) == 4
    assert all("A sum." in text for text in scene.values(RESPONSES))
