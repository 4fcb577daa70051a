"""`trinity_db.connect`: queries, their snapshots and their rights, from a program that has only a URL."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import trinity_db
from tests.support.documents import ROOT, of_page
from tests.support.postgres import by_login, execute
from tests.support.rows import Scene, payload
from tests.support.waiting import wait_until
from trinity_db.api import spool
from trinity_db.errors import (
    ConfigError,
    ImportFileError,
    MissingExtra,
    NotFound,
    SchemaMismatch,
    TrinityError,
    WrongSelect,
)
from trinity_db.processors.config import ArchiveConfig
from trinity_db.processors.jobs.archive import Archiver

SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"


@pytest.fixture
def store(scene: Scene) -> Iterator[trinity_db.Store]:
    """The store, by a login that may only read."""
    with trinity_db.connect(by_login(scene.database.url)) as store:
        yield store


def test_a_query_is_refined_and_read_in_each_form(scene: Scene, store: trinity_db.Store) -> None:
    scene.make_ready(3, (1.0, 0.0, 0.5))
    rows = store.run("run").experiences(state="ready")
    good = rows.where("reward > %s", 0).select("id", "response", "reward").order_by("reward DESC, id")
    ids = scene.values("SELECT id FROM trinity.experience WHERE reward > 0 ORDER BY reward DESC, id")
    assert (rows.count(), good.count()) == (9, 6)
    assert [row["id"] for row in good.to_list()] == ids
    assert good.limit(4).where("reward < %s", 1).select("id").to_list() == [{"id": ids[3]}]
    assert good.head(1) == [{"id": ids[0], "response": "1.0", "reward": 1.0}]
    assert good.columns == ["id", "response", "reward"]
    table = good.to_arrow()
    assert table.schema.types == [pa.int64(), pa.string(), pa.float64()]
    assert table["id"].to_pylist() == ids
    frame = good.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame["reward"].tolist() == [1.0] * 3 + [0.5] * 3
    assert pa.table(good) == table == pa.Table.from_batches(good.to_batches(batch_size=4))
    assert pd.DataFrame.from_arrow(rows)["created_at"].dt.tz is not None
    assert good.to_polars().equals(pl.DataFrame(good))
    assert good.to_dataset()["reward"][:] == [1.0] * 3 + [0.5] * 3
    assert [batch.num_rows for batch in good.to_batches(batch_size=4)] == [4, 2]


def test_duckdb_reads_the_rows_of_a_query_once_and_leaves_no_session(
    scene: Scene, store: trinity_db.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.make_ready(3, (1.0, 0.0, 0.5))
    reads: list[int] = []
    spooled = spool._spooled

    def counted(*arguments: Any) -> Any:
        rows = spooled(*arguments).read_all()
        reads.append(rows.num_rows)
        return rows.to_reader()

    monkeypatch.setattr(spool, "_spooled", counted)
    rows = store.run("run").experiences(arrays=True).select("id", "reward")  # noqa: F841 (in the SELECT)
    best = "SELECT id, len(token_ids) FROM rows WHERE reward = 1 ORDER BY id"
    expected = scene.values("SELECT id FROM trinity.experience WHERE reward = 1 ORDER BY id")
    assert duckdb.sql(best).fetchall() == [(id, len(payload((0, 0)).token_ids)) for id in expected]
    assert [number for number in reads if number] == [9]
    store.close()
    wait_until(lambda: scene.value(SESSIONS) == 1, "the session of the scene is the only one")


def test_arrays_are_those_that_the_policy_sampled(scene: Scene, store: trinity_db.Store) -> None:
    scene.make_ready(2)
    rows = store.run("run").experiences(arrays=True)
    for row in rows.select("response").order_by("id").to_arrow().to_pylist():
        assert list(row) == ["response", "token_ids", "action_mask", "logprobs", "versions"]
        assert row["token_ids"] == [0, 1, 2, 3, 4]
        assert row["action_mask"] == [False] * 3 + [True] * 2
        assert row["versions"] == [0, 0]
        assert np.allclose(row["logprobs"], [-1.0, -0.5])
    assert rows.order_by("id").limit(2).select("response").where("true").columns == [
        "response",
        *list(row)[1:],
    ]
    execute(scene.database.url, "UPDATE trinity.payload SET data = NULL, pruned_at = now()")
    assert rows.to_arrow()["token_ids"].null_count == 4


def test_batches_of_long_rows_end_at_a_number_of_bytes(
    scene: Scene, store: trinity_db.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = "SELECT n, repeat('x', CASE WHEN n <= 200 THEN 1 ELSE 2000000 END) AS text"
    rows = store.sql(f"{lengths} FROM generate_series(1, 300) AS n")
    numbers: list[int] = []
    for batch in rows.to_batches():
        numbers += batch["n"].to_pylist()
        # A piece that follows short rows may have PIECE_ROWS long ones.
        assert batch.nbytes <= spool.BATCH_BYTES + spool.PIECE_ROWS * 2_000_100
    assert numbers == list(range(1, 301))
    long = [batch.num_rows for batch in rows.where("n > 240").to_batches()]
    assert len(long) == 2
    assert long[0] * 2_000_000 < spool.BATCH_BYTES + spool.PIECE_BYTES
    scene.make_ready(3)
    monkeypatch.setattr(spool, "BATCH_BYTES", 5 * spool.TOKEN_BYTES)
    monkeypatch.setattr(spool, "FIRST_ROWS", 1)
    monkeypatch.setattr(spool, "PIECE_ROWS", 1)
    arrays = store.run("run").experiences(arrays=True).select("id").to_batches()
    tokens = [batch["token_ids"].to_pylist() for batch in arrays]
    assert tokens == [[[0, 1, 2, 3, 4]]] * 6


def test_rows_of_a_step_have_the_numbers_of_its_draw(scene: Scene, store: trinity_db.Store) -> None:
    scene.make_ready(2)
    batch = scene.train(1, 2)
    execute(scene.database.url, "UPDATE trinity.experience SET reward = 7")
    run = store.run("run")
    drawn = run.experiences(at=1, arrays=True).to_pandas()
    assert drawn["reward"].tolist() == [1.0, 0.0, 1.0, 0.0]
    assert drawn["advantage"].tolist() == [0.5, -0.5, 0.5, -0.5]
    assert drawn["token_ids"].str.len().tolist() == [5] * 4
    assert run.experiences(at=2).count() == 0
    assert run.batches().select("id", "experiences").to_list() == [{"id": batch.id, "experiences": 4}]
    assert {row["state"] for row in run.groups()} == {"trained"}
    assert run.rewards().count() == 4
    scene.record(1, {"loss": 0.25})
    assert [(row["role"], row["name"], row["value"]) for row in run.metrics()] == [("train", "loss", 0.25)]


def test_one_reading_is_one_snapshot_and_holds_no_transaction(scene: Scene, store: trinity_db.Store) -> None:
    scene.make_ready(4)
    batches = store.run("run").experiences(arrays=True).to_batches(batch_size=2)
    first = batches.read_next_batch()
    state = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in%%'"
    )
    assert scene.value(state) == 0
    execute(scene.database.url, "DELETE FROM trinity.run")
    assert first.num_rows + sum(batch.num_rows for batch in batches) == 8


def test_sql_takes_values_by_position_and_by_name(store: trinity_db.Store) -> None:
    assert store.sql("SELECT %s AS text, '100%%' AS share", ["50%"]).to_list() == [
        {"text": "50%", "share": "100%"}
    ]
    assert store.sql("SELECT '100%' AS share").where("share LIKE %s", "1%").count() == 1
    named = store.sql("SELECT %(a)s::integer AS a, %(a)s::integer + %(b)s AS b", {"a": 1, "b": 2})
    assert named.where("b > %s", 2).to_list() == [{"a": 1, "b": 3}]
    values = store.sql(
        "SELECT 1.5::numeric AS n, ARRAY[1, 2] AS l, '{\"a\": 1}'::jsonb AS j, now() AS t"
    ).to_arrow()
    assert values.schema.types == [pa.float64(), pa.list_(pa.int32()), pa.string(), pa.timestamp("us", "UTC")]
    assert store.sql("SELECT id, name AS id FROM run").columns == ["id", "id_2"]


@pytest.mark.parametrize(
    ("condition", "values", "words"),
    [
        ("rewrd > %s", [0], 'column "rewrd" does not exist.*the columns are id, run, state'),
        ("reward >", [], "syntax error"),
        ("reward > %s", [], "syntax error"),
        ("reward > %s", [1, 2], "1 more values are given"),
        ("reward > %s AND id < %s", [1], "No value is given for %s"),
        ("task LIKE '5%' AND reward > %s", [1], "Write %% for a percent sign"),
        ("reward > %s", ["much"], "invalid input syntax"),
    ],
)
def test_a_wrong_condition_is_one_line(
    store: trinity_db.Store, condition: str, values: list[object], words: str
) -> None:
    with pytest.raises((WrongSelect, ConfigError), match=words):
        store.run("run").experiences().where(condition, *values).to_list()


def test_a_condition_may_end_with_a_comment(scene: Scene, store: trinity_db.Store) -> None:
    scene.make_ready(1)
    rows = store.run("run").experiences()
    assert rows.where("reward > 0 -- good ones").where("id > %s", 0).count() == 1


def test_a_store_goes_on_after_the_server_has_ended_its_session(scene: Scene, tmp_path: Path) -> None:
    with trinity_db.connect(scene.database.url, read_only=False) as store:

        def end_sessions() -> None:
            execute(
                scene.database.url,
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name = 'trinity-db' AND datname = current_database()"
                f" AND pid NOT IN (pg_backend_pid(), {scene.database.connection().info.backend_pid})",
            )

        store.run("run")
        end_sessions()
        assert store.run("run").name == "run"
        end_sessions()
        assert store.export("tasks", "tasks", tmp_path / "tasks.jsonl") == 8


FORKS = """
import os, sys, trinity_db

store = trinity_db.connect(sys.argv[1])
session = store.sql("SELECT pg_backend_pid() AS pid")
before = session.to_list()
child = os.fork()
if child == 0:
    is_other = session.to_list() != before
    store.close()
    os._exit(0 if is_other else 1)
assert os.waitpid(child, 0)[1] == 0, "the child used its parent's session"
assert session.to_list() == before, "the child ended its parent's session"
"""


def test_a_forked_process_has_a_session_of_its_own(scene: Scene) -> None:
    done = subprocess.run([sys.executable, "-c", FORKS, scene.database.url], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_wrong_arguments_are_named(scene: Scene, store: trinity_db.Store, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no kind of rows 'task'; did you mean 'tasks'"):
        store.export("tasks", "task", tmp_path / "tasks.jsonl")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="batch_size is -1; it must be at least 1"):
        store.runs().to_batches(-1)


def test_a_store_for_reading_does_not_write(scene: Scene, store: trinity_db.Store) -> None:
    delete = "WITH gone AS (DELETE FROM run RETURNING id) SELECT * FROM gone"
    with pytest.raises(WrongSelect, match="must not contain data-modifying"):
        store.sql(delete).to_list()
    with (
        trinity_db.connect(scene.database.url, read_only=False) as owner,
        pytest.raises(WrongSelect, match="must not contain data-modifying"),
    ):
        owner.sql(delete).to_list()
    with (
        trinity_db.connect(scene.database.url, read_only=False) as owner,
        pytest.raises(WrongSelect, match="cannot write: cannot execute nextval"),
    ):
        owner.sql("SELECT nextval('run_id_seq')").to_list()
    assert scene.value("SELECT count(*) FROM trinity.run") == 1


def test_names_that_do_not_exist_are_answered_with_near_ones(store: trinity_db.Store) -> None:
    with pytest.raises(NotFound, match="did you mean 'run'"):
        store.run("runs")
    with pytest.raises(ConfigError, match="did you mean 'trained'"):
        store.run("run").experiences(state="traned")
    assert [row["run"] for row in store.runs()] == ["run"]
    assert [(row["name"], row["tasks"]) for row in store.tasksets()] == [("tasks", 8)]


def test_a_store_of_another_version_is_refused(server: str) -> None:
    with pytest.raises(SchemaMismatch, match="trinity-db db"):
        trinity_db.connect(server)


def test_a_notebook_shows_ten_rows_as_text(scene: Scene, store: trinity_db.Store) -> None:
    scene.make_ready(6)
    execute(scene.database.url, "UPDATE trinity.experience_text SET response = '<b>bold</b>'")
    shown = store.run("run").experiences().select("id", "response")._repr_html_()
    assert shown.count("<tr>") == 11
    assert "&lt;b&gt;bold" in shown
    assert "The first 10 rows" in shown
    assert repr(store.sql("SELECT\n 1")) == "<trinity_db.Query: SELECT 1>"


def test_rows_of_a_program_are_imported_and_exported(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path))
    rows = [{"question": "1 + 1", "answer": "2"}, {"question": "1 + 2", "answer": "3"}]
    renamed = {"prompt": "question"}
    with trinity_db.connect(scene.database.url, read_only=False) as store:
        done = store.import_tasks(rows, name="sums", mapping=renamed)
        assert (done.read, done.added, done.rejected) == (2, 2, 0)
        again = store.import_tasks(pd.DataFrame(rows), name="sums", mapping=renamed)
        assert (again.added, again.known) == (0, 2)
        long = 10**5000  # more digits than Python writes
        wrong = store.import_tasks(
            [{"prompt": {1, 2}}, "no row", {"prompt": "1 + 3"}, {"prompt": "a", "n": long}, long], name="sums"
        )
        assert (wrong.added, wrong.rejected) == (1, 4)
        assert sorted(wrong.reasons) == [
            "has a value or a name that JSON does not have",
            "is no dictionary of columns",
        ]
        assert store.export("sums", "tasks", tmp_path / "sums.jsonl") == 3
        copied = store.import_tasks(tmp_path / "sums.jsonl", name="copy")
        assert copied.added == 3
        pairs = pa.table({"prompt": ["1 + 1"], "chosen": ["2"], "rejected": ["3"]})
        assert store.import_preferences(pairs, name="pairs").added == 1
        with pytest.raises(ImportFileError, match="no rows to import"):
            store.import_tasks([], name="none")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(MissingExtra, match=r"pip install 'trinity-db\[arrow\]'"):
            store.import_preferences(pairs, name="pairs")


def test_rewards_are_given_together_or_not_at_all(scene: Scene) -> None:
    scene.make_ready(1)
    first, second = scene.values("SELECT id FROM trinity.experience ORDER BY id")
    with trinity_db.connect(scene.database.url, read_only=False) as store:
        # As a column of pandas holds them.
        change = store.reward(np.int64(first), np.float32(0.5), name="thumb", by="ann")  # type: ignore[arg-type]
        assert (change.before, change.after, change.group_mean) == (1.0, 1.5, 0.75)
        with pytest.raises(ConfigError, match="unknown key 'valu'"):
            store.reward_rows([{"experience": second, "value": 1}, {"experience": first, "valu": 1}])
        with pytest.raises(NotFound, match="no experience 0"):
            store.reward_rows([{"experience": second, "value": 1}, {"experience": 0, "value": 1}])
        assert store.run("run").rewards().where("name <> 'score'").select(
            "value", "created_by"
        ).to_list() == [{"value": 0.5, "created_by": "ann"}]
    with (
        trinity_db.connect(scene.database.url) as reader,
        pytest.raises(TrinityError, match=r"connect\(read_only=False\)"),
    ):
        reader.reward(first, 1)


def test_the_package_imports_at_once() -> None:
    loaded = "import sys, trinity_db; print({'psycopg', 'pydantic', 'pyarrow', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True).stdout == "set()\n"
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        trinity_db.conect  # noqa: B018


def test_the_examples_of_the_guide_run(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.make_ready(2)
    scene.train(1, 2)
    execute(scene.database.url, "UPDATE trinity.run SET name = 'my-run'")
    monkeypatch.setenv("TRINITY_DB_URL", scene.database.url)
    monkeypatch.setenv("TRINITY_DB_READ_URL", by_login(scene.database.url))
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / ".trinity-db"))
    monkeypatch.chdir(tmp_path)
    archiver = Archiver(scene.database, scene.run, ArchiveConfig(min_rows=1), stopping=lambda: False)
    assert archiver.finish(scene.processor)
    namespace: dict[str, Any] = {}
    for block in of_page(ROOT / "docs" / "guides" / "python.md"):
        if block.language == "python" and block.file is None:  # a file is a program: test_external_trainer.py
            exec(compile(block.text, f"{block}", "exec"), namespace)
    assert len(namespace["steps"]) == scene.value("SELECT count(*) FROM trinity.batch")
    assert namespace["table"].num_rows == len(namespace["ds"]) > 0
    assert len(namespace["rest"]) == len(namespace["ds"]) - 2
    assert len(namespace["above"]) == scene.value(
        "SELECT count(*) FROM trinity.experience WHERE reward > 0.5"
    )
    assert namespace["lengths"]["tokens"].tolist() == [len(payload((0, 0)).token_ids)] * 2
    assert namespace["step"]["trained_tokens"].min() > 0
    assert (namespace["summary"].added, namespace["change"].after) == (1, namespace["change"].before + 0.25)
    assert (tmp_path / "sums.parquet").is_file()
