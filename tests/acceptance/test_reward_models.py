"""The example of configs/reward_model: a reward model from preferences, and a few steps of PPO against it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from tests.acceptance.command import Store, new_store
from tests.support.examples import reward_model
from trinity_db.models import load_tokenizer

MAX_SECONDS = 300.0  # a quiet machine takes twenty
PREFIX = "configs/reward_model/judge.py:mean_digit"
REWARDED = """
SELECT x.prompt, x.response, o.finish_reason, e.reward, v.name, v.value, v.weight
FROM experience e
JOIN experience_text x ON x.experience_id = e.id
JOIN rollout o ON o.id = e.rollout_id
JOIN reward_event v ON v.rollout_id = e.rollout_id
JOIN run r ON r.id = e.run_id
WHERE r.name = 'large-digits' AND e.state = 'trained'
ORDER BY e.id
"""
CHECKPOINT = """
SELECT p.checkpoint FROM policy_version p JOIN run r ON r.id = p.run_id
WHERE r.name = 'large-digits-reward' AND p.checkpoint IS NOT NULL ORDER BY p.version DESC LIMIT 1
"""
ACCURACY = """
SELECT m.value FROM metric m JOIN run r ON r.id = m.run_id
WHERE r.name = 'large-digits-reward' AND m.name = 'eval/rewards/accuracies' ORDER BY m.step DESC LIMIT 1
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * MAX_SECONDS)]


@pytest.fixture(scope="module")
def store(server: str, template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    small = ("--set=trainer.steps=2", "--set=trainer.batch_size=4")
    with new_store(server, template, tmp_path_factory.mktemp("reward-model")) as store:
        reward_model(store, *small, timeout=MAX_SECONDS)
        yield store


def test_the_reward_model_tells_held_out_pairs_apart(store: Store) -> None:
    assert store.value(ACCURACY) > 0.8


def test_rollouts_are_rewarded_as_plain_transformers_says_and_weight_0_stands_beside(store: Store) -> None:
    folder = Path(store.value(CHECKPOINT))
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = load_tokenizer(folder)
    rows = store.rows(REWARDED)
    said = [row for row in rows if row["name"] == "reward_model"]
    beside = [row for row in rows if row["name"] == PREFIX]
    assert len(said) == len(beside) > 2 * 4
    assert {row["weight"] for row in beside} == {0.0}
    for row in said:
        end = "" if row["finish_reason"] == "length" else tokenizer.eos_token
        tokens = tokenizer.encode(row["prompt"] + row["response"] + end, add_special_tokens=False)
        with torch.no_grad():
            alone = model(input_ids=torch.tensor([tokens])).logits.item()
        assert row["value"] == row["reward"] == pytest.approx(alone, abs=1e-5)
