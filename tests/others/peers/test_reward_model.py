"""Whole optimiser steps of a reward model against TRL's RewardTrainer: weights and metrics."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from transformers import AutoModelForSequenceClassification

from tests.others.peers.cases import DIFFERENCES
from tests.others.peers.steps import (
    STEP_TOLERANCE,
    Models,
    build_models,
    learner,
    moved,
    payload,
    settings,
    trained,
)
from trinity_db.arrays.codec import Payload
from trinity_db.models import load_model, load_tokenizer
from trinity_db.trainer.learner.gathered_columns import Batch

PAIRS = {
    "prompt": ["1", "7", "42", "9"],
    "chosen": ["0123", "5", "8675309", "42"],
    "rejected": ["31415926", "27182", "1", "777"],
}
MARGINS = [0.0, 0.5, 1.0, 2.0]
SAME = {"loss": "loss", "accuracy": "rewards/accuracies", "margin": "rewards/margins"}
"""Metrics, as TRL and as the learner call them."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return build_models(tmp_path_factory.mktemp("models"))


def classifier(models: Models) -> Any:
    """The starting model with a head of random weights."""
    torch.manual_seed(5)
    model = AutoModelForSequenceClassification.from_pretrained(
        models.start, num_labels=1, dtype=torch.float32
    )
    torch.nn.init.normal_(model.score.weight, std=0.3)
    return model


def batch_of(seen: list[dict[str, Any]]) -> Batch:
    """TRL has a micro-batch's chosen rows first, then its rejected ones."""
    rows: list[Payload] = []
    margins: list[float] = []
    for inputs in seen:
        one = [
            payload(tokens, attention, attention)
            for tokens, attention in zip(inputs["input_ids"], inputs["attention_mask"], strict=True)
        ]
        half = len(one) // 2
        rows += [one[index + side] for index in range(half) for side in (0, half)]
        of_pairs = inputs.get("margin", torch.zeros(half)).tolist()
        margins += [margin for margin in of_pairs for _ in range(2)]
    return Batch(rows, {"margins": np.array(margins)})


@pytest.mark.parametrize("has_margins", [False, True])
@pytest.mark.parametrize("center", [None, 0.1])
def test_a_step_is_that_of_trl(
    models: Models, tmp_path: Path, has_margins: bool, center: float | None
) -> None:
    start = classifier(models)
    trainer = trl.RewardTrainer(
        classifier(models),
        args=trl.RewardConfig(**settings(tmp_path), center_rewards_coefficient=center),
        processing_class=load_tokenizer(models.start),
        train_dataset=Dataset.from_dict(PAIRS | ({"margin": MARGINS} if has_margins else {})),
    )
    batch = batch_of(trained(trainer))
    algorithm = {"name": "reward_model", "center_coefficient": center or 0.0, "margin": float(has_margins)}
    one = learner(algorithm, models.start)
    head = one.policy.value_head
    assert head is not None
    with torch.no_grad():
        head.weight.copy_(start.score.weight)
    metrics = one.step(batch)
    ours = torch.cat(
        [
            moved(one.policy.model.parameters(), load_model(models.start, "cpu").parameters()),
            moved([head.weight], [start.score.weight]),
        ]
    )
    theirs = moved(trainer.model.parameters(), start.parameters())
    largest = float((ours - theirs).abs().max())
    name = f"reward_model{', margins' if has_margins else ''}{', centred' if center else ''}"
    DIFFERENCES[f"step {name}", "TRL"] = largest
    assert theirs.abs().max() > 1e-2
    assert largest < STEP_TOLERANCE, f"a step of {name} differs from TRL's by {largest}"
    said = trainer.state.log_history[0]
    assert {name: metrics[ours_name] for name, ours_name in SAME.items()} == pytest.approx(
        {name: said[name] for name in SAME}, rel=1e-5, abs=1e-5
    )
