"""Episodes that verifiers' own classes write, with branches, and what an import makes of them."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.others.environments.test_verifiers import PYTHON
from tests.support.rows import Scene, attempt, rollout
from trinity_db.api.importing import Import
from trinity_db.data.exporter import export_rows
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
READ = """
import json, sys
from verifiers.v1.episode import WireEpisode
for line in sys.stdin:
    episode = WireEpisode.model_validate_json(line)
    [trace] = episode.traces
    branches = [
        {"tokens": b.token_ids, "mask": b.sampled_mask, "logprobs": b.logprobs} for b in trace.branches
    ]
    told = {"branches": branches, "reward": trace.reward, "group": episode.group.id, "ok": trace.ok}
    task = trace.task.model_dump(mode="json")
    print(json.dumps(told | {"reply": trace.last_reply, "prompt": task["data"]["prompt"]}))
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
    for (made, _, *rewards), known in zip(rollouts, written[1::2], strict=True):
        assert rewards == pytest.approx([known["reward"]] * 2)
        found = payloads.read(scene.database, scene.values(IDS, made)).values()
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


def exported(scene: Scene, name: str, path: Path) -> list[dict[str, Any]]:
    """What the package says of the episodes that an export wrote."""
    export_rows(scene.database, "traces", name, path, lambda rows: None, "verifiers")
    read = [PYTHON, "-c", READ]
    lines = subprocess.run(read, input=path.read_text(), capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in lines.splitlines()]


def test_imported_episodes_are_exported_with_their_tokens_and_rewards(
    scene: Scene, written: list[dict[str, Any]], tmp_path: Path
) -> None:
    imported(scene, written[::2], tmp_path / "theirs.jsonl")
    episodes = exported(scene, "theirs", tmp_path / "ours.jsonl")
    assert [episode["group"] for episode in episodes] == ["g0", "g1"] * 2
    for episode, known in zip(episodes, written[1::2], strict=True):
        assert episode["ok"]
        assert (episode["reply"], episode["reward"]) == ("A sum.", pytest.approx(known["reward"]))
        first, second = episode["branches"]
        assert [first["tokens"], second["tokens"]] == [branch["tokens"] for branch in known["branches"]]
        assert first["mask"] == known["branches"][0]["mask"]
        assert first["logprobs"] == pytest.approx(known["branches"][0]["logprobs"], abs=1e-4)
        assert sum(second["mask"]) == 3, "the first answer is trained in the first branch only"


def test_a_run_is_exported_as_episodes(scene: Scene, tmp_path: Path) -> None:
    [one, other] = scene.claim(2)
    scene.write([rollout(one, 0, "1"), attempt(other, 0, ["1", "0"], rewards=[1.0, 0.5])])
    scene.process()
    first, second = exported(scene, "run", tmp_path / "run.jsonl")
    assert first["group"] != second["group"]
    assert (first["prompt"], first["reply"], first["reward"]) == (one.task["prompt"], "1", 1.0)
    stored = payloads.read(scene.database, scene.values("SELECT id FROM trinity.experience ORDER BY id"))
    branches = [*first["branches"], *second["branches"]]
    assert [branch["tokens"] for branch in branches] == [row.token_ids.tolist() for row in stored.values()]
    assert [branch["mask"] for branch in branches] == [row.action_mask.tolist() for row in stored.values()]
