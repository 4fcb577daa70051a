"""Whole optimiser steps on good and bad responses against TRL's KTO trainer: weights and metrics."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trl
from datasets import Dataset

from tests.others.peers.steps import Models, Step, agree, our_step, payload, settings, their_step, trained
from trinity_db.arrays.codec import Payload
from trinity_db.models import load_model, load_tokenizer
from trinity_db.trainer.learner.gathered_columns import Batch, mismatched

LABELLED = {
    "prompt": ["12", "7", "456", "98", "3"],
    "completion": ["0123", "5", "8675309", "42", "2718"],
    "label": [True, False, False, True, True],
}


def kto(models: Models, folder: Path, **options: Any) -> tuple[Step, dict[str, Any]]:
    """Its step on all rows at once, since each of its micro-batches has a divergence of its own."""
    whole = {"per_device_train_batch_size": 5, "gradient_accumulation_steps": 1}
    trainer = trl.KTOTrainer(
        load_model(models.start, "cpu"),
        ref_model=load_model(models.reference, "cpu"),
        args=trl.KTOConfig(**settings(folder, **whole), train_sampling_strategy="sequential", **options),
        processing_class=load_tokenizer(models.start),
        train_dataset=Dataset.from_dict(LABELLED),
    )
    [inputs] = trained(trainer)
    return their_step(trainer, models), inputs


def payloads(inputs: dict[str, Any], prefix: str = "") -> list[Payload]:
    names = ("input_ids", "attention_mask", "completion_mask")
    return [payload(*row) for row in zip(*(inputs[prefix + name] for name in names), strict=True)]


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        ("kto", {}),
        ("kto", {"beta": 0.5, "desirable_weight": 0.8, "undesirable_weight": 1.33}),
        ("apo_zero_unpaired", {"undesirable_weight": 1.33}),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_step_of_kto_is_that_of_trl(
    models: Models, tmp_path: Path, loss: str, options: dict[str, float], swapped: bool
) -> None:
    # One of the two is likelier to say what it was not asked for: its divergence is above 0.
    one = Models(*reversed(models)) if swapped else models
    theirs, inputs = kto(one, tmp_path, loss_type=loss, **options)
    labels = np.where(inputs["label"], 1.0, 0.0)
    batch = Batch(payloads(inputs), {"rewards": labels})
    ours = our_step(one, {"name": "kto", "loss": loss, **options}, batch)
    agree(f"kto {loss}", ours, theirs)
    names = {"entropy", "logps/chosen", "logps/rejected"} | ({"kl"} if loss == "kto" else set())
    assert {name: ours.metrics[name] for name in names} == pytest.approx(
        {name: theirs.metrics[name] for name in names}, rel=1e-5, abs=1e-5
    )
    if loss == "kto":
        assert (ours.metrics["kl"] > 0.1) != swapped


@pytest.mark.parametrize("max_length", [None, 6])
def test_mismatched_rows_are_those_of_trl(models: Models, tmp_path: Path, max_length: int | None) -> None:
    _, whole = kto(models, tmp_path)
    _, inputs = kto(models, tmp_path, max_length=max_length)
    ours, theirs = mismatched(payloads(whole), max_length or 64), payloads(inputs, "KL_")
    assert (max(one.num_tokens for one in theirs) == max_length) == (max_length is not None)
    assert [one.token_ids.tolist() for one in ours] == [one.token_ids.tolist() for one in theirs]
    assert [one.action_mask.tolist() for one in ours] == [one.action_mask.tolist() for one in theirs]
