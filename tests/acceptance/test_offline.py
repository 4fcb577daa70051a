"""Training on imported rows, with no explorer and no processor: undisturbed, and killed twice on the way.

Each life has a database of its own, copied from the one with the imports, so that the ids are the same in
all of them, and with the ids the order of the rows.
"""

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from tests.acceptance.command import Ended, Store, new_store, reversals

EPOCHS, BATCH_SIZE = 16, 4
KILLED_AT = (15, 50)  # committed steps of about 90
TRAINER: dict[str, Any] = {
    "epochs": EPOCHS,
    "batch_size": BATCH_SIZE,
    "learning_rate": 1e-3,
    "schedule": "cosine",
    "publish_every": 4,
    "eval_every": 30,
}
MEASURE = {"sft": "eval/loss", "dpo": "eval/rewards/margins"}
WEIGHTS = "model.safetensors"
COMMITTED = "SELECT count(*) >= %(steps)s FROM batch WHERE state = 'committed'"

# How often each row (sft) or pair (dpo) that is not held out was used in each epoch.
USES = {
    "sft": """
        SELECT e.id, b.epoch, count(*) AS uses, e.use_count, e.state::text
        FROM experience e
        JOIN batch_item i ON i.experience_id = e.id
        JOIN batch b ON b.id = i.batch_id AND b.state = 'committed'
        GROUP BY e.id, b.epoch
    """,
    "dpo": """
        SELECT p.id, b.epoch, count(*) AS uses, p.use_count, p.state::text
        FROM preference p
        JOIN batch_item i ON i.preference_id = p.id AND i.experience_id = p.chosen_id
        JOIN batch_item j ON j.batch_id = i.batch_id AND j.ordinal = i.ordinal + 1
                         AND j.preference_id = p.id AND j.experience_id = p.rejected_id
        JOIN batch b ON b.id = i.batch_id AND b.state = 'committed'
        GROUP BY p.id, b.epoch
    """,
}
# Ids of what the run has, by whether it is held out.
ADOPTED = {
    "sft": "SELECT id FROM experience WHERE source_id IS NOT NULL AND held_out = %(held_out)s ORDER BY id",
    "dpo": "SELECT p.id FROM preference p JOIN run r ON r.id = p.run_id AND r.kind = 'train' "
    "WHERE p.held_out = %(held_out)s ORDER BY p.id",
}


class Life(NamedTuple):
    """A run that is over, the only one of its store."""

    store: Store
    algorithm: str
    ended: Ended
    steps_when_killed: list[int]


Lives = Mapping[tuple[str, str], Life]
LIVES = (("sft", "killed"), ("dpo", "killed"), ("dpo", "undisturbed"))
"""Algorithm, and what happened on the way."""


@pytest.fixture(scope="module")
def lives(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lives]:
    with ExitStack() as stack:
        imports = stack.enter_context(new_store(server, template, tmp_path_factory.mktemp("imports")))
        tasks = reversals(2)
        imports.import_rows(
            "sft-data", "demonstrations", [{"prompt": t["prompt"], "completion": t["answer"]} for t in tasks]
        )
        imports.import_rows(
            "dpo-data",
            "preferences",
            [
                {"prompt": t["prompt"], "chosen": t["answer"] + "0", "rejected": t["answer"] + "4"}
                for t in tasks
            ],
        )
        source = urlsplit(imports.url).path.strip("/")
        stores = [
            stack.enter_context(new_store(server, source, tmp_path_factory.mktemp("-".join(life))))
            for life in LIVES
        ]
        with ThreadPoolExecutor() as pool:
            lived = pool.map(_live, stores, *zip(*LIVES, strict=True))
            yield dict(zip(LIVES, lived, strict=True))


@pytest.fixture(params=LIVES, ids="-".join)
def life(request: pytest.FixtureRequest, lives: Lives) -> Life:
    return lives[request.param]


def test_a_run_ends_after_its_epochs(life: Life) -> None:
    assert life.ended.code == 0, life.ended.stderr
    assert life.ended.error_lines == []
    assert life.store.value("SELECT state::text FROM run WHERE kind = 'train'") == "finished"


def test_only_the_trainer_was_there(life: Life) -> None:
    roles = life.store.rows("SELECT role::text FROM worker")
    assert [row["role"] for row in roles] == ["train"] * (1 + len(life.steps_when_killed))


def test_every_row_is_used_once_an_epoch(life: Life) -> None:
    uses = life.store.rows(USES[life.algorithm])
    ids = [row["id"] for row in life.store.rows(ADOPTED[life.algorithm], held_out=False)]
    assert len(ids) > 2 * BATCH_SIZE
    assert sorted((row["id"], row["epoch"]) for row in uses) == [(i, n) for i in ids for n in range(EPOCHS)]
    assert {(row["uses"], row["use_count"], row["state"]) for row in uses} == {(1, EPOCHS, "trained")}


def test_every_step_is_committed_once_and_in_a_version(life: Life) -> None:
    num_rows = len(life.store.rows(ADOPTED[life.algorithm], held_out=False))
    batches = life.store.rows(
        "SELECT step, epoch, included_version FROM batch WHERE state = 'committed' ORDER BY step"
    )
    steps_an_epoch = -(-num_rows // BATCH_SIZE)
    assert [(row["step"], row["epoch"]) for row in batches] == [
        (step + 1, step // steps_an_epoch) for step in range(steps_an_epoch * EPOCHS)
    ]
    assert all(row["included_version"] is not None for row in batches)
    assert life.store.value("SELECT count(*) FROM batch WHERE state = 'leased'") == 0


def test_held_out_rows_are_never_drawn(life: Life) -> None:
    held_out = [row["id"] for row in life.store.rows(ADOPTED[life.algorithm], held_out=True)]
    assert held_out
    column = {"sft": "experience_id", "dpo": "preference_id"}[life.algorithm]
    drawn = f"SELECT count(*) FROM batch_item WHERE {column} = ANY(%(ids)s)"
    assert life.store.value(drawn, ids=held_out) == 0


def test_lives_were_cut_short_twice(lives: Lives) -> None:
    for (_, fate), life in lives.items():
        total = life.store.value("SELECT max(step) FROM batch WHERE state = 'committed'")
        assert len(life.steps_when_killed) == (len(KILLED_AT) if fate == "killed" else 0)
        assert all(steps < total for steps in life.steps_when_killed)


def test_being_killed_changes_no_weight(lives: Lives) -> None:
    killed, undisturbed = (_checkpoint(lives["dpo", fate]) for fate in ("killed", "undisturbed"))
    assert (killed / WEIGHTS).read_bytes() == (undisturbed / WEIGHTS).read_bytes()


def test_held_out_rows_are_measured_before_during_and_after(life: Life) -> None:
    # A step that was done again after a crash was measured again, with the same result.
    measured = life.store.rows(
        "SELECT DISTINCT step, value FROM metric WHERE name = %(name)s ORDER BY step",
        name=MEASURE[life.algorithm],
    )
    last = life.store.value("SELECT max(step) FROM batch")
    assert [row["step"] for row in measured] == [*range(0, last, TRAINER["eval_every"]), last]
    before, after = measured[0]["value"], measured[-1]["value"]
    if life.algorithm == "dpo":
        assert after > before == 0
    else:
        assert after < before


def test_the_last_checkpoint_is_a_model_for_transformers(life: Life) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = _checkpoint(life)
    model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    tokens = AutoTokenizer.from_pretrained(folder, local_files_only=True)("01=", return_tensors="pt")
    assert tokens["input_ids"].shape == (1, 3)
    assert torch.isfinite(model(**tokens).logits).all()


def _live(store: Store, algorithm: str, fate: str) -> Life:
    config = store.config(
        algorithm, data=[f"{algorithm}-data"], holdout=0.2, algorithm=algorithm, trainer=TRAINER
    )
    steps_when_killed = []
    for steps in KILLED_AT if fate == "killed" else ():
        process = store.start("train", config)
        store.wait_for(COMMITTED, process, steps=steps)
        process.kill()
        steps_when_killed.append(store.value("SELECT max(step) FROM batch"))
    return Life(store, algorithm, store.run("train", config), steps_when_killed)


def _checkpoint(life: Life) -> Path:
    return Path(life.store.value("SELECT checkpoint FROM policy_version ORDER BY version DESC LIMIT 1"))
