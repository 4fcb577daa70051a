"""The shipped GSM8K example, on a small part of the real data."""

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import psycopg
import pytest
from psycopg.rows import dict_row

from tests.support.postgres import by_login

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "gsm8k"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason="the GSM8K files are not beside the project")


def run_example(tmp_path: Path, database_url: str) -> None:
    """The example on its first lines, in one pass of small batches."""
    part = tmp_path / "gsm8k"
    part.mkdir()
    for name, count in (("example_model_solutions.jsonl", 40), ("train.jsonl", 20)):
        with (DATA / name).open() as lines:
            (part / name).write_text("".join(islice(lines, count)))
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "TRINITY_DB_URL": database_url,
        "TRINITY_DB_READ_URL": by_login(database_url),
        "TRINITY_DB_HOME": str(tmp_path / "home"),
    }
    small = [
        f"--set={override}"
        for override in ("trainer.epochs=1", "trainer.batch_size=8", "trainer.eval_every=2")
    ]
    done = subprocess.run(
        ["bash", ROOT / "configs/gsm8k/run.sh", part, *small], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_preferences_from_real_solutions_train_and_real_tasks_are_explored(
    tmp_path: Path, database_url: str
) -> None:
    run_example(tmp_path, database_url)

    def ask(query: str) -> list[dict[str, object]]:
        with psycopg.connect(
            database_url, row_factory=dict_row, options="-c search_path=trinity"
        ) as connection:
            return connection.execute(query.encode()).fetchall()

    # A pair sets a correct against a wrong solution of one question; questions are held out as a whole.
    pairs = ask(
        """select count(*) as pairs, count(*) filter (where p.held_out) as held_out,
                  bool_and(c.reward = 1 and r.reward = 0 and c.group_id = r.group_id) as sound,
                  count(*) filter (where c.held_out <> r.held_out or c.held_out <> p.held_out) as torn
           from trinity.preference p
           join trinity.experience c on c.id = p.chosen_id
           join trinity.experience r on r.id = p.rejected_id
           where p.run_id = (select id from trinity.run where name = 'gsm8k-dpo')"""
    )[0]
    assert pairs["sound"] is True
    assert pairs["torn"] == 0
    assert int(str(pairs["pairs"])) > int(str(pairs["held_out"])) > 0

    # The frozen starting model prefers neither side; training moves the held-out pairs.
    margins = ask("select step, value from trinity.metric where name = 'eval/rewards/margins' order by step")
    assert margins[0] == {"step": 0, "value": 0.0}
    assert margins[-1]["value"] != 0.0

    explored = ask("select count(*) as rows, bool_and(reward in (0, 1)) as scored from experience_view "
                   "where run = 'gsm8k-explore' and state = 'trained'")[0]  # fmt: skip
    assert explored["scored"] is True
    assert int(str(explored["rows"])) > 0
