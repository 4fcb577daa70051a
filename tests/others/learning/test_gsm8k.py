"""Preferences from real solutions of GSM8K raise the margin on questions that were held out."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.acceptance.command import Store
from tests.others.learning import task

ROOT = Path(__file__).parents[3]
SOLUTIONS = ROOT.parent / "shared" / "data" / "gsm8k" / "example_model_solutions.jsonl"
MARGINS = """SELECT value FROM metric m JOIN run r ON r.id = m.run_id
             WHERE r.name = %(run)s AND m.name = 'eval/rewards/margins' ORDER BY m.step, m.id"""

pytestmark = [
    pytest.mark.timeout(2 * task.RUN_SECONDS),
    pytest.mark.skipif(not SOLUTIONS.is_file(), reason="the GSM8K files are not beside the project"),
]


@pytest.fixture(scope="module")
def solutions(store: Store) -> None:
    columns = [
        f"--map={pair}"
        for pair in (
            "prompt=question",
            "response=*.solution",
            "reward=*.is_correct",
            "answer=ground_truth",
        )
    ]
    ended = store.start("import", SOLUTIONS, "--as", "trajectories", "--name", "gsm8k-solutions", *columns)
    assert ended.wait(task.RUN_SECONDS).code == 0


def margins(store: Store, algorithm: str) -> list[float]:
    """From the first evaluation to the last."""
    example = "kto" if algorithm == "kto" else "dpo"
    config: dict[str, Any] = yaml.safe_load((ROOT / "configs" / "gsm8k" / f"{example}.yaml").read_text())
    name = config["name"] = f"gsm8k-{algorithm}"
    config["algorithm"] = algorithm
    config["trainer"] |= {"epochs": 1, "micro_batch_tokens": 8192}
    if example == "dpo":
        task.train(store, "process", config, "--drain")
    task.train(store, "train", config)
    return [float(row["value"]) for row in store.rows(MARGINS, run=name)]


@pytest.mark.usefixtures("solutions")
@pytest.mark.parametrize("algorithm", ["dpo", "simpo", "kto"])
def test_margins_on_held_out_questions_rise(algorithm: str, store: Store, results: list[str]) -> None:
    found = margins(store, algorithm)
    results.append(f"gsm8k {algorithm:6} margins on held-out rows {found[0]:.4f} to {found[-1]:.4f}")
    assert found[-1] > found[0]
