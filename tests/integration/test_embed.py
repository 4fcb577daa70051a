"""Vectors in Lance: near duplicates by meaning against all pairs, searches by meaning, deletions."""

import json
import random
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.command_line import CommandLine
from tests.support.rows import Scene, in_a_thread, rollout
from tests.support.steps import load, process
from trinity_db.arrays import vectors
from trinity_db.arrays.archive import connection
from trinity_db.config import base
from trinity_db.config.shared import ModelConfig
from trinity_db.postgres.connection import Database
from trinity_db.processors.jobs import semantic_search
from trinity_db.processors.lists.step import Context, Drop, Step
from trinity_db.store import instances

ANY_GROUP = {"clean": [], "score": [], "group": {"min_size": 1}}
DROPS = "SELECT experience_id, step, reason, detail FROM trinity.\"drop\" WHERE stage = 'clean' ORDER BY 1"
TEXTS = (
    "SELECT e.id, x.response FROM trinity.experience e"
    " JOIN trinity.experience_text x ON x.experience_id = e.id"
)


class Handler(BaseHTTPRequestHandler):
    """Speaks OpenAI's embeddings: a text of numbers is its vector."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append({**self.headers, "body": asked})  # type: ignore[attr-defined]
        data = [
            {"index": place, "embedding": [float(number) for number in text.split()]}
            for place, text in enumerate(asked["input"])
        ]
        is_right = self.path == "/v1/embeddings" and asked["model"] == "numbers"
        body = json.dumps({"data": data[::-1]} if is_right else {"error": "no such model"}).encode()
        self.send_response(200 if is_right else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@contextmanager
def numbers(requests: list[Any] | None = None) -> Iterator[str]:
    """The address of an endpoint, which appends what it is sent to `requests`."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests = [] if requests is None else requests  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def url(shared_database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("TRINITY_DB_URL", shared_database.url)
    monkeypatch.setenv("TRINITY_DB_LANCE_URI", str(tmp_path / "lance"))
    with numbers() as address:
        yield address


def step(scene: Scene, url: str, **options: Any) -> Step:
    """As a processor that has just started prepares it."""
    [loaded] = load("clean", {"name": "embed", "url": url, "model": "numbers", **options})
    return loaded.prepared(Context(scene.database, ModelConfig.model_validate({"path": "none"}), 1.0))


def configuration(folder: Path, url: str) -> str:
    """A file of a run whose step embed asks this endpoint."""
    path = folder / "run.yaml"
    path.write_text(
        "{name: run, model: {scratch: {}}, taskset: tasks, algorithm: grpo, trainer: {steps: 1},"
        f" processors: {{clean: [{{name: embed, url: '{url}', model: numbers}}]}}}}\n"
    )
    return str(path)


def hostile_table(scene: Scene, url: str) -> None:
    """A table of vectors whose metadata names an address, and a variable of whoever searches."""
    with scene.database.transaction() as tx:
        store = instances.identify(tx).id
    fields = [
        pa.field("experience_id", pa.int64(), nullable=False),
        pa.field("vector", pa.list_(pa.float32(), 4), nullable=False),
    ]
    made_by = json.dumps({"url": url, "model": "numbers", "key_env": "TRINITY_DB_URL"})
    schema = pa.schema(fields, metadata={"made_by": made_by})
    name = vectors.name_of(scene.run.id, store, "ab" * 32)
    connection(base.lance_uri()).create_table(name, schema=schema)


def write(scene: Scene, *groups: Sequence[str]) -> list[int]:
    for responses in groups:
        [group] = scene.claim(1, group_size=len(responses))
        scene.write([rollout(group, member, response) for member, response in enumerate(responses)])
    return scene.values("SELECT id FROM trinity.experience ORDER BY id")


def texts(count: int) -> list[str]:
    rng = random.Random(5)
    return [" ".join(f"{rng.gauss(0, 1):.3f}" for _ in range(4)) for _ in range(count)]


def unit(text: str) -> Any:
    vector = np.array([float(number) for number in text.split()])
    return vector / np.linalg.norm(vector)


def test_what_is_dropped_is_what_a_comparison_of_all_pairs_drops(scene: Scene, url: str) -> None:
    write(scene, texts(40)[:20], texts(40)[20:])
    for _ in range(2):  # a second processor goes on where the first one ended
        process(
            scene, {**ANY_GROUP, "claim_size": 15}, {"clean": [step(scene, url, threshold=0.9, within="run")]}
        )
    kept: dict[int, Any] = {}
    dropped: dict[int, float] = {}
    for id, response in sorted(scene.rows(TEXTS)):
        nearest = max((float(unit(response) @ other) for other in kept.values()), default=-1.0)
        if nearest >= 0.9:
            dropped[id] = nearest
        else:
            kept[id] = unit(response)
    assert 5 < len(dropped) < 35
    found = {id: detail for id, _, _, detail in scene.rows(DROPS)}
    assert found.keys() == dropped.keys()
    assert all(detail["of"] in kept for detail in found.values())
    assert all(abs(detail["cosine"] - dropped[id]) < 1e-3 for id, detail in found.items())


def test_of_rows_that_processors_judge_at_once_one_passes(scene: Scene, url: str) -> None:
    for _ in range(6):
        write(scene, ["1 2 3 4"] * 4)
    groups = [scene.values("SELECT id FROM trinity.experience WHERE id %% 4 = %s", part) for part in range(4)]
    calls = [in_a_thread(scene.database, lambda ids=ids: ask(scene, url, ids)) for ids in groups]  # type: ignore[misc]
    found = {id: drop for call in calls for id, drop in call.result(30).items()}
    [passed] = [id for id, drop in found.items() if drop is None]
    assert len(found) == 24
    again = ask(scene, url, [passed])
    assert again == {passed: None}, "as after a crash before its verdict"


def test_a_table_without_a_first_version_as_after_a_crash_is_made_again(scene: Scene, url: str) -> None:
    ids = write(scene, ["1 2 3 4"] * 2)
    ask(scene, url, ids)
    [folder] = Path(base.lance_uri()).glob("vectors_*")
    for part in folder.iterdir():
        shutil.rmtree(part)
    assert semantic_search.like(scene.database, ids[0], None, 10) is None
    found = ask(scene, url, ids)
    assert [drop is None for drop in found.values()] == [True, False]


def test_a_row_that_is_to_be_dropped_itself_is_no_reason_to_drop_another_one(scene: Scene, url: str) -> None:
    first, between, last = write(scene, ["1.000 0.000 0 0", "0.940 0.342 0 0", "0.766 0.643 0 0"])
    # Another processor has written the vectors of the first two, and not judged them yet.
    ask(scene, url, [first, between], threshold=None)
    assert ask(scene, url, [last], threshold=0.9) == {last: None}, "as the one between is near the first"
    found = ask(scene, url, [between, first], threshold=0.9)
    assert found == {first: None, between: Drop("near_in_meaning", {"of": first, "cosine": 0.9397})}
    assert ask(scene, url, [last], threshold=0.9) == {last: None}


def test_a_row_that_stays_is_found_behind_many_that_were_dropped(scene: Scene, url: str) -> None:
    ids = write(scene, ["1 2 3 4"] * 250)
    ask(scene, url, ids, threshold=None)
    with scene.database.transaction() as tx:
        # One row is kept, the 231st: more than twice as many nearest ones as are looked at first come before.
        tx.execute("UPDATE trinity.experience SET state = 'clean' WHERE id = %s", [ids[230]])
        tx.execute("UPDATE trinity.experience SET state = 'dropped' WHERE id < %s", [ids[230]])
    found = ask(scene, url, ids[-2:])
    assert [drop.detail["of"] for drop in found.values() if drop and drop.detail] == [ids[230]] * 2


def ask(
    scene: Scene, url: str, ids: Sequence[int], threshold: float | None = 0.99
) -> Mapping[int, Drop | None]:
    rows = scene.rows(
        "SELECT e.id, e.run_id, g.task_id, e.group_id, x.response FROM trinity.experience e"
        " JOIN trinity.rollout_group g ON g.id = e.group_id"
        " JOIN trinity.experience_text x ON x.experience_id = e.id WHERE e.id = ANY(%s) ORDER BY e.id",
        list(ids),
    )
    names = ("id", "run_id", "task_id", "group_id", "response")
    columns = dict(zip(names, (list(column) for column in zip(*rows, strict=True)), strict=True))
    asked = step(scene, url, threshold=threshold, within="run")
    return {columns["id"][place]: found for place, found in asked(columns)}


def test_rows_are_found_by_meaning_in_the_order_of_their_cosines_until_the_run_is_deleted(
    scene: Scene, url: str, command_line: CommandLine, tmp_path: Path
) -> None:
    written = texts(30)
    ids = write(scene, written)
    process(scene, ANY_GROUP, {"clean": [step(scene, url)]})
    assert scene.rows(DROPS) == []
    by_id = dict(scene.rows(TEXTS))

    def nearest(vector: Any, among: Sequence[int]) -> list[int]:
        return sorted(among, key=lambda id: -float(unit(by_id[id]) @ vector))[:5]

    config = ("--config", configuration(tmp_path, url))
    listed = json.loads(command_line("search", "--json", "--limit", "5", *config, "--", "0.5 1 -1 2").output)
    assert [one["experience"] for one in listed] == nearest(unit("0.5 1 -1 2"), ids)
    assert listed[0]["score"] == pytest.approx(unit(listed[0]["response"]) @ unit("0.5 1 -1 2"), abs=1e-4)
    listed = json.loads(command_line("search", str(ids[3]), "--run", "run", "--json", "--limit", "5").output)
    assert [one["experience"] for one in listed] == nearest(
        unit(by_id[ids[3]]), [id for id in ids if id != ids[3]]
    )
    in_text = json.loads(command_line("search", written[4].split()[0], "--by-words", "--json").output)
    assert ids[4] in {one["experience"] for one in in_text} or written[4].startswith("-")
    [table] = (tmp_path / "lance").glob("vectors_*")
    with scene.database.transaction() as tx:
        tx.execute("UPDATE trinity.worker SET stopped_at = now()")
    assert command_line("delete", "run", "--yes").code == 0
    assert not table.exists()


def test_words_are_sent_to_no_model_that_only_a_table_of_vectors_names(
    scene: Scene, url: str, command_line: CommandLine, tmp_path: Path
) -> None:
    requests: list[Any] = []
    with numbers(requests) as thief:
        hostile_table(scene, thief)
        for config in ([], ["--config", configuration(tmp_path, url)]):
            done = command_line("search", "1 2 3 4", *config)
            assert "pass the run's configuration" in done.complaint
        ids = write(scene, ["1 2 3 4", "4 3 2 1"])
        process(scene, ANY_GROUP, {"clean": [step(scene, url)]})
        found = command_line("search", "4 3 2 1", "--config", configuration(tmp_path, url), "--json")
        assert [one["experience"] for one in json.loads(found.output)] == ids[::-1]
    assert requests == []


def test_rows_whose_endpoint_fails_have_failed_and_the_error_says_why(scene: Scene, url: str) -> None:
    write(scene, ["1 2 3 4"])
    [loaded] = load("clean", {"name": "embed", "url": url, "model": "letters"})
    context = Context(scene.database, ModelConfig.model_validate({"path": "none"}), 1.0)
    process(scene, {**ANY_GROUP, "max_attempts": 1}, {"clean": [loaded.prepared(context)]})
    [(reason, error)] = scene.rows(
        "SELECT reason, detail->>'error' FROM trinity.\"drop\" WHERE stage = 'clean'"
    )
    assert reason == "clean_failed"
    assert 'embeddings: HTTP 404: {"error": "no such model"}' in error
