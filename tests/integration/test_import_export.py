"""Files into the store and out of it again."""

import gzip
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from trinity_db.data.dataset import open_writer, shared_prompts
from trinity_db.data.exporter import export_rows
from trinity_db.data.files.readers import open_rows
from trinity_db.data.importer import BATCH_RECORDS, import_rows
from trinity_db.data.records.columns import Columns
from trinity_db.data.records.records import Kind
from trinity_db.data.rejects import Summary
from trinity_db.errors import ConfigError, DatabaseUnavailable, ImportFileError, NotFound, TrinityError
from trinity_db.postgres.connection import Database
from trinity_db.store import adoption, runs

GSM8K = Path(__file__).parents[2] / ".." / "shared" / "data" / "gsm8k"
SOLUTIONS = {
    "prompt": "question",
    "response": "*.solution",
    "reward": "*.is_correct",
    "answer": "ground_truth",
}

USER = {"role": "user", "content": "What color is the sky?"}
BLUE = {"role": "assistant", "content": "It is blue."}
GREEN = {"role": "assistant", "content": "It is green."}

EXAMPLES: dict[Kind, list[dict[str, Any]]] = {
    "tasks": [
        {"prompt": "1+1?", "answer": "2", "level": 3, "tests": ["a", None], "extra": {"x": None, "y": 1e20}},
        {"prompt": [USER], "answer": 7, "unicode": "é🙂\\u0000"},
        {"prompt": "no answer"},
    ],
    "demonstrations": [
        {"prompt": "The sky is", "completion": " blue.", "id": 1},
        {"prompt": "The sky is", "completion": " blue.", "id": 2},
        {"topic": "p", "messages": [USER, BLUE], "extra": {"z": 0.1}},
    ],
    "preferences": [
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " green.", "margin": 0.5, "source": "me"},
        {"prompt": "The sky is", "chosen": " blue.", "rejected": " black."},
        {"chosen": [USER, BLUE], "rejected": [USER, GREEN]},
        {"prompt": "The sky is", "completion": " blue.", "label": True, "rater": "you"},
        {"prompt": "The sky is", "completion": " wet.", "label": False},
    ],
    "trajectories": [
        {"prompt": "1+1?", "response": "2", "reward": 1, "model": "m", "answer": "2"},
        {"prompt": "1+1?", "response": "3", "reward": False, "answer": "2", "seconds": 2},
        {"prompt": "1+1?", "response": "4"},
        {"messages": [USER, BLUE], "reward": -0.25},
    ],
}  # fmt: skip


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def read(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def load(database: Database, path: Path, kind: Kind, name: str = "set", **mapping: str) -> Summary:
    return import_rows(database, open_rows(path), Columns(kind, mapping), name, lambda done, total: None)


def save(database: Database, path: Path, kind: Kind, name: str = "set") -> int:
    return export_rows(database, kind, name, path, lambda rows: None)


def counts(summary: Summary) -> tuple[int, int, int, int]:
    assert summary.read == summary.added + summary.known + summary.rejected
    return summary.read, summary.added, summary.known, summary.rejected


def ask(database: Database, question: str) -> list[tuple[Any, ...]]:
    with database.transaction() as tx:
        return [tuple(row.values()) for row in tx.execute(question.encode())]


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_second_import_adds_nothing(database: Database, tmp_path: Path, kind: Kind) -> None:
    rows = EXAMPLES[kind]
    path = write(tmp_path / "rows.jsonl", [*rows, *rows])
    assert counts(load(database, path, kind)) == (2 * len(rows), len(rows), len(rows), 0)
    assert counts(load(database, path, kind)) == (2 * len(rows), 0, 2 * len(rows), 0)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".csv", ".parquet", ".arrow"])
@pytest.mark.parametrize("kind", EXAMPLES)
def test_an_export_is_read_back_without_loss(
    database: Database, tmp_path: Path, kind: Kind, suffix: str
) -> None:
    load(database, write(tmp_path / "rows.jsonl", EXAMPLES[kind]), kind)
    assert save(database, tmp_path / f"out{suffix}", kind) == len(EXAMPLES[kind])
    again = load(database, tmp_path / f"out{suffix}", kind)
    assert counts(again) == (len(EXAMPLES[kind]), 0, len(EXAMPLES[kind]), 0), again.reasons
    load(database, tmp_path / f"out{suffix}", kind, name="copy")
    for name in ("set", "copy"):
        save(database, tmp_path / f"{name}.jsonl", kind, name)
    assert (tmp_path / "set.jsonl").read_bytes() == (tmp_path / "copy.jsonl").read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_an_export_has_the_columns_of_trl(database: Database, tmp_path: Path) -> None:
    for kind in ("demonstrations", "preferences"):
        load(database, write(tmp_path / "rows.jsonl", EXAMPLES[kind]), kind, kind)
    save(database, tmp_path / "sft.jsonl", "demonstrations", "demonstrations")
    save(database, tmp_path / "dpo.jsonl", "preferences", "preferences")
    sft, dpo = [read(tmp_path / name) for name in ("sft.jsonl", "dpo.jsonl")]
    assert sft[0] == {"prompt": "The sky is", "completion": " blue.", "extra": {"id": 1}}
    assert sft[2] == {"prompt": [USER], "completion": [BLUE], "extra": {"topic": "p", "extra": {"z": 0.1}}}
    assert dpo[2] == {"prompt": [USER], "chosen": [BLUE], "rejected": [GREEN]}
    assert dpo[3] == {
        "prompt": "The sky is",
        "completion": " blue.",
        "label": True,
        "extra": {"rater": "you"},
    }


def test_tasks_are_a_taskset(database: Database, tmp_path: Path) -> None:
    load(database, write(tmp_path / "rows.jsonl", EXAMPLES["tasks"]), "tasks")
    with database.transaction() as tx:
        assert runs.find_taskset(tx, "set")
    assert ask(database, "SELECT count(*) FROM trinity.run") == [(0,)]
    assert ask(database, "SELECT payload FROM trinity.task ORDER BY id LIMIT 1") == [
        (
            {
                "prompt": "1+1?",
                "answer": "2",
                "level": 3,
                "tests": ["a", None],
                "extra": {"x": None, "y": 10**20},
            },
        )
    ]


def test_trajectories_are_groups_with_rewards(database: Database, tmp_path: Path) -> None:
    load(database, write(tmp_path / "rows.jsonl", EXAMPLES["trajectories"]), "trajectories")
    seen = ask(
        database,
        "SELECT state, member, prompt, response, reward, model FROM trinity.experience_view ORDER BY id",
    )
    assert seen == [
        ("ready", 0, "1+1?", "2", 1.0, "m"),
        ("ready", 1, "1+1?", "3", 0.0, None),
        ("ready", 0, "1+1?", "4", None, None),
        ("ready", 0, "What color is the sky?", "It is blue.", -0.25, None),
    ]
    groups = (
        "SELECT state, expected, arrived, reward_count, reward_mean FROM trinity.rollout_group ORDER BY id"
    )
    assert ask(database, groups)[0] == ("ready", 2, 2, 2, 0.5)
    more = [{"prompt": "1+1?", "response": "11", "reward": 0, "answer": "2"}]
    load(database, write(tmp_path / "more.jsonl", more), "trajectories")
    assert ask(database, groups)[0][:4] == ("ready", 3, 3, 3)
    assert ask(database, "SELECT DISTINCT source, name FROM trinity.reward_event") == [("import", "reward")]


def test_a_response_in_two_preferences_is_one_experience(database: Database, tmp_path: Path) -> None:
    load(database, write(tmp_path / "rows.jsonl", EXAMPLES["preferences"][:2]), "preferences")
    assert ask(database, "SELECT response FROM trinity.experience_view ORDER BY id") == [
        (" blue.",),
        (" green.",),
        (" black.",),
    ]
    assert ask(
        database,
        "SELECT count(*) AS pairs, count(DISTINCT chosen_id) AS chosen, sum(margin) FROM trinity.preference",
    ) == [(2, 1, 0.5)]


def test_imported_rows_are_adopted_by_a_run(database: Database, tmp_path: Path) -> None:
    for kind, rows in EXAMPLES.items():
        load(database, write(tmp_path / "rows.jsonl", rows), kind, kind)
    with database.transaction() as tx:
        run = runs.open_run(
            tx, "r", {}, "rows", adoption.Sources(["demonstrations", "preferences", "trajectories"])
        )
    adopted = f"FROM trinity.experience WHERE run_id = {run.id} AND state = 'ready'"
    assert ask(database, f"SELECT count(*) {adopted}") == [(3 + 7 + 4,)]
    assert ask(database, f"SELECT count(*) FROM trinity.preference WHERE run_id = {run.id}") == [(3,)]
    assert ask(database, f"SELECT count(*) {adopted} AND group_id IS NULL") == [(3,)]


def test_bad_rows_are_kept_out_and_told(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    lines = [
        b'{"prompt": "a", "completion": "b"}',
        b'{"prompt": "a"}',
        b'{"prompt": "a", "completion": null}',
        b'{"prompt": "a", "completion": "\xff"}',
        b'{"prompt": "' + b"x" * 10 * 2**20 + b'"}',
        b'{"prompt": "a", "completion": "b"}',
        b'{"prompt": "a", "completion": "nul \\u0000"}',
        b'{"prompt": "a", "completion": "half \\ud800"}',
        b'{"prompt": "a", "completion": "c"}',
        b'{"prompt": "a", "comp',
    ]
    path.write_bytes(b"\n".join(lines))
    summary = load(database, path, "demonstrations")
    assert counts(summary) == (10, 2, 1, 7)
    assert summary.reasons["'response' is missing"].first_line == 2
    assert summary.rejects_path == tmp_path / "home" / "rejects" / "set-demonstrations.jsonl"
    assert [entry["line"] for entry in read(summary.rejects_path)] == [2, 3, 4, 5, 7, 8, 10]
    assert ask(database, "SELECT response FROM trinity.experience_view ORDER BY id") == [("b",), ("c",)]


def test_rows_before_a_break_are_imported_and_the_rest_by_a_second_try(
    database: Database, tmp_path: Path
) -> None:
    rows = [{"prompt": f"p{n}", "completion": f"{n**7:x}"} for n in range(20_000)]
    packed = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 4])
    with pytest.raises(
        ImportFileError, match=r"breaks off after line \d+: .*; (\d+) records before that are"
    ):
        load(database, path, "demonstrations")
    ((stored,),) = ask(database, "SELECT count(*) FROM trinity.experience")
    assert BATCH_RECORDS < stored < len(rows)
    path.write_bytes(packed)
    assert counts(load(database, path, "demonstrations")) == (len(rows), len(rows) - stored, stored, 0)


def test_a_file_without_a_good_row_leaves_nothing_behind(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(ImportFileError, match="cannot be read"):
        load(database, path, "demonstrations")
    summary = load(database, write(tmp_path / "rows.jsonl", [{"a": 1}]), "demonstrations")
    assert counts(summary) == (1, 0, 0, 1)
    tables = "SELECT (SELECT count(*) FROM trinity.run) + (SELECT count(*) FROM trinity.taskset)"
    assert ask(database, tables) == [(0,)]


def test_two_imports_at_once_add_each_row_once(database: Database, tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n % 50}", "response": f"r{n}", "reward": n % 2} for n in range(3_000)]
    forward = write(tmp_path / "forward.jsonl", rows)
    backward = write(tmp_path / "backward.jsonl", rows[::-1])

    def load_and_leave(path: Path) -> Summary:
        summary = load(database, path, "trajectories")
        database.close()  # this thread's connection
        return summary

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(load_and_leave, (forward, backward)))
    assert sum(summary.added for summary in results) == len(rows)
    assert ask(
        database, "SELECT count(*) AS rows, count(DISTINCT import_key) AS keys FROM trinity.experience"
    ) == [(3_000, 3_000)]
    sums = "SELECT sum(expected) AS e, sum(arrived) AS a, sum(reward_count) AS r FROM trinity.rollout_group"
    assert ask(database, sums) == [(3_000, 3_000, 3_000)]


def test_what_the_database_undid_is_imported_by_another_try(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = list[int]()

    def open_interrupted(*arguments: Any) -> Any:
        write = open_writer(*arguments)

        def interrupted(records: Any) -> int:
            if not tries:
                tries.append(0)
                raise DatabaseUnavailable("The database undid a transaction: deadlock detected")
            tries.append(write(records))
            if len(tries) == 2:
                raise DatabaseUnavailable("The database went away: what became of the commit is unclear")
            return tries[-1]

        return interrupted

    monkeypatch.setattr("trinity_db.data.importer.open_writer", open_interrupted)
    path = write(tmp_path / "rows.jsonl", EXAMPLES["trajectories"])
    assert counts(load(database, path, "trajectories")) == (4, 0, 4, 0)
    assert tries == [0, 4, 0]
    assert ask(database, "SELECT count(*) FROM trinity.experience") == [(4,)]


def test_more_responses_to_one_task_than_a_group_can_count_open_another(
    database: Database, tmp_path: Path
) -> None:
    load(database, write(tmp_path / "one.jsonl", [{"prompt": "p", "response": "first"}]), "trajectories")
    ask(database, "UPDATE trinity.rollout_group SET expected = 32766, arrived = 32766 RETURNING id")
    rows = [{"prompt": "p", "response": f"r{n}"} for n in range(3)]
    assert load(database, write(tmp_path / "more.jsonl", rows), "trajectories").added == 3
    assert ask(database, "SELECT arrived FROM trinity.rollout_group ORDER BY id") == [(32766,), (3,)]


def test_the_name_of_a_training_run_is_refused(database: Database, tmp_path: Path) -> None:
    with database.transaction() as tx:
        runs.open_run(tx, "set", {}, "groups")
    path = write(tmp_path / "rows.jsonl", EXAMPLES["demonstrations"])
    with pytest.raises(ConfigError, match="is a training run; import under another name"):
        load(database, path, "demonstrations")


@pytest.mark.parametrize("kind", ["preferences", "trajectories"])
def test_what_explorers_draw_is_not_mixed_with_the_prompts_of_responses(
    database: Database, tmp_path: Path, kind: Kind
) -> None:
    tasks = write(tmp_path / "tasks.jsonl", EXAMPLES["tasks"])
    responses = write(tmp_path / "responses.jsonl", EXAMPLES[kind])
    demonstrations = write(tmp_path / "demonstrations.jsonl", EXAMPLES["demonstrations"])
    load(database, demonstrations, "demonstrations", "first")
    load(database, tasks, "tasks", "first")
    with pytest.raises(ConfigError, match="'first' has tasks to attempt; import under another name"):
        load(database, responses, kind, "first")
    load(database, responses, kind, "second")
    with pytest.raises(ConfigError, match="'second' has the prompts of responses; import under another"):
        load(database, tasks, "tasks", "second")
    load(database, demonstrations, "demonstrations", "second")
    assert load(database, tasks, "tasks", "first").known == len(EXAMPLES["tasks"])
    assert load(database, responses, kind, "second").known == len(EXAMPLES[kind])


def test_progress_reaches_the_size_of_the_file(database: Database, tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", [{"prompt": f"p{n}"} for n in range(2_500)])
    seen: list[tuple[int, int]] = []
    import_rows(database, open_rows(path), Columns("tasks"), "set", lambda *at: seen.append(at))
    size = path.stat().st_size
    assert len(seen) == 3
    assert seen == sorted(seen)
    assert seen[-1] == (size, size)


@pytest.mark.parametrize("name", ["folder.jsonl", f"{'long' * 100}.jsonl"])
def test_a_file_that_cannot_be_written_is_named_in_one_line(
    database: Database, tmp_path: Path, name: str
) -> None:
    load(database, write(tmp_path / "rows.jsonl", EXAMPLES["tasks"]), "tasks")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(
        TrinityError, match=rf"{name}: cannot be written: (Is a directory|File name too long)$"
    ):
        save(database, tmp_path / name, "tasks")
    assert {path.name for path in tmp_path.iterdir()} == {"rows.jsonl", "folder.jsonl"}


def test_what_is_not_there_cannot_be_exported(database: Database, tmp_path: Path) -> None:
    load(database, write(tmp_path / "rows.jsonl", EXAMPLES["tasks"]), "tasks")
    (tmp_path / "out.jsonl").write_text("precious")
    with pytest.raises(NotFound, match="'set' holds no preferences"):
        save(database, tmp_path / "out.jsonl", "preferences")
    assert (tmp_path / "out.jsonl").read_text() == "precious"
    with pytest.raises(ConfigError, match=r"known are \.jsonl"):
        save(database, tmp_path / "out.tsv", "tasks")
    with pytest.raises(ConfigError, match="there is no folder"):
        save(database, tmp_path / "nowhere" / "out.jsonl", "tasks")


def test_the_solutions_of_four_models_are_imported_with_rewards(database: Database) -> None:
    path = GSM8K / "example_model_solutions.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    assert counts(load(database, path, "trajectories", "solutions", **SOLUTIONS)) == (5_276, 5_276, 0, 0)
    assert counts(load(database, path, "trajectories", "solutions", **SOLUTIONS)) == (5_276, 0, 5_276, 0)
    groups = "SELECT count(*), min(arrived), max(arrived), sum(reward_count) FROM trinity.rollout_group"
    assert ask(database, groups) == [(1_319, 4, 4, 5_276)]
    assert ask(database, "SELECT sum(reward) = sum(v.value) FROM trinity.experience e "
        "JOIN trinity.reward_event v ON v.rollout_id = e.rollout_id") == [(True,)]  # fmt: skip


def test_prompts_that_another_taskset_has_too_are_counted(database: Database, tmp_path: Path) -> None:
    def tasks(name: str, *prompts: Any) -> None:
        rows = [{"prompt": prompt, "answer": f"{name} {number}"} for number, prompt in enumerate(prompts)]
        load(database, write(tmp_path / f"{name}.jsonl", rows), "tasks", name)

    tasks("train", "1+1?", "2+2?", [USER], "3+3?")
    tasks("test", "2+2?", [USER], "4+4?", "2+2?")
    tasks("other", "4+4?")
    load(database, write(tmp_path / "x.jsonl", [{"prompt": "4+4?", "response": "8"}]), "trajectories", "said")
    assert shared_prompts(database, "test") == {"train": 3, "other": 1}
    assert shared_prompts(database, "train") == {"test": 2}
    assert shared_prompts(database, "said") == {"other": 1, "test": 1}
