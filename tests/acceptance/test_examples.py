"""The calculator and the frozen lake of configs/, with few steps: exactly what was sampled is trained."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.command import Store, new_store
from tests.support.examples import ROOT, curve, script
from trinity_db.arrays import codec
from trinity_db.config import user_functions
from trinity_db.models import load_tokenizer

EXAMPLES = ("calculator", "frozenlake")
STEPS = 3
SMALL = (f"--set=trainer.steps={STEPS}", "--set=trainer.batch_size=4")
MAX_SECONDS = 300.0  # a quiet machine takes ten
PAYLOADS = """
SELECT e.reward, x.prompt, x.response, e.prompt_length, e.response_length, p.codec, p.data, p.num_tokens
FROM experience e
JOIN experience_text x ON x.experience_id = e.id
JOIN payload p ON p.experience_id = e.id
JOIN run r ON r.id = e.run_id
WHERE r.name = 'calculator' AND e.state = 'trained'
"""
STARTING_MODEL = """
SELECT p.checkpoint FROM policy_version p JOIN run r ON r.id = p.run_id
WHERE r.name = 'calculator' AND p.version = 0
"""
MOVES = """
SELECT count(*) AS moves, count(*) FILTER (WHERE e.response_length = 1 AND p.num_tokens = 21) AS of_one_token,
       count(*) FILTER (WHERE e.step = 0) AS attempts, count(DISTINCT e.rollout_id) AS rollouts,
       max(e.step) AS last_step
FROM experience e JOIN payload p ON p.experience_id = e.id JOIN run r ON r.id = e.run_id
WHERE r.name = 'frozenlake' AND e.state = 'trained'
"""
LAKES = """
SELECT max(lakes) FROM (
    SELECT count(DISTINCT x.prompt) AS lakes
    FROM experience e JOIN experience_text x ON x.experience_id = e.id JOIN run r ON r.id = e.run_id
    WHERE r.name = 'frozenlake' AND e.step = 0 GROUP BY e.group_id) of_group
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * MAX_SECONDS)]


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store in which both examples were run on a part of their data."""
    with new_store(server, template, tmp_path_factory.mktemp("examples")) as store:
        with ThreadPoolExecutor() as pool:
            list(pool.map(partial(run_small, store), EXAMPLES))
        yield store


def run_small(store: Store, name: str) -> None:
    folder = store.folder / name
    example = ROOT / "configs" / name
    script(store, sys.executable, example / "make_tasks.py", folder, timeout=MAX_SECONDS)
    for kind, rows in (("tasks", name), ("demonstrations", f"{name}-demonstrations")):
        part = folder / f"{rows}.jsonl"
        with (folder / f"{kind}.jsonl").open() as lines:
            part.write_text("".join(islice(lines, 200)))
        ended = store.run("import", part, "--as", kind, "--name", rows)
        assert ended.code == 0, ended.stderr
    for command, config, *options in (
        ("train", "warmup", "--set=trainer.epochs=1"),
        ("run", name, *SMALL),
    ):
        script(store, "trinity-db", command, example / f"{config}.yaml", *options, timeout=MAX_SECONDS)


def test_each_example_was_trained_and_has_a_curve(store: Store) -> None:
    for name in EXAMPLES:
        state = "SELECT state::text FROM run WHERE name = %(name)s"
        assert store.value(state, name=name) == "finished"
        assert [row["policy_version"] for row in curve(store, name)] == [0]


def test_the_turns_of_the_policy_are_trained_and_the_calculators_are_not(store: Store) -> None:
    calculate: Any = user_functions.find(f"{ROOT}/configs/calculator/calculator.py:calculate", "tool", {})
    tokenizer = load_tokenizer(Path(store.value(STARTING_MODEL)))
    rows = store.rows(PAYLOADS)
    called = 0
    assert rows
    for row in rows:
        payload = codec.decode(row["codec"], row["data"], row["num_tokens"])
        parts = [
            (trained, [int(token) for token, _ in pairs])
            for trained, pairs in groupby(
                zip(payload.token_ids, payload.action_mask, strict=True), lambda pair: bool(pair[1])
            )
        ]
        texts = [tokenizer.decode(tokens, skip_special_tokens=True) for _, tokens in parts]
        assert [trained for trained, _ in parts] == [False, True] * (len(parts) // 2)
        assert texts[0] == row["prompt"]
        assert "".join(texts[1:]) == row["response"]
        assert row["response_length"] == payload.action_mask.sum() == payload.num_trained
        for said, read in zip(texts[1:-1:2], texts[2::2], strict=True):
            assert read == f"{calculate(said)}="
            called += 1
    assert called, "no attempt called the calculator"


def test_each_move_is_a_row_of_its_own_in_which_one_token_is_trained(store: Store) -> None:
    [found] = store.rows(MOVES)
    assert found["moves"] == found["of_one_token"] > found["attempts"] == found["rollouts"]
    assert 0 < found["last_step"] < 12
    assert store.value(LAKES) == 1, "the attempts of a group cross the same lake"
