"""Whole optimiser steps on pairs and demonstrations against TRL's trainers: weights and metrics."""

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
import trl
from datasets import Dataset
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

from tests.others.peers.steps import (
    Models,
    Step,
    agree,
    learner,
    moved,
    our_step,
    payload,
    settings,
    their_step,
    trained,
)
from trinity_db.arrays.codec import Payload
from trinity_db.models import load_model, load_tokenizer
from trinity_db.models.frozen_model import FrozenModel
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch

PAIRS = {
    # One token to a prompt: TRL's ORPO learns the prompt too, and nothing predicts the first token.
    "prompt": ["1", "7", "4", "9"],
    "chosen": ["0123", "5", "8675309", "42"],
    "rejected": ["31415926", "27182", "1", "777"],
}


def dpo_pairs(seen: list[dict[str, Any]]) -> Batch:
    """TRL has a micro-batch's chosen responses first, then its rejected ones."""
    rows: list[Payload] = []
    for inputs in seen:
        columns = (inputs["input_ids"], inputs["attention_mask"], inputs["completion_mask"])
        one = [payload(*row) for row in zip(*columns, strict=True)]
        half = len(one) // 2
        rows += [one[index + side] for index in range(half) for side in (0, half)]
    return Batch(rows)


def labelled_pairs(seen: list[dict[str, Any]]) -> Batch:
    rows: list[Payload] = []
    for inputs in seen:
        for index in range(len(inputs["chosen_input_ids"])):
            for side in ("chosen", "rejected"):
                tokens, labels = inputs[f"{side}_input_ids"][index], inputs[f"{side}_labels"][index]
                rows.append(payload(tokens, inputs[f"{side}_attention_mask"][index], labels != -100))
    return Batch(rows)


def dpo(models: Models, folder: Path, **options: Any) -> tuple[Step, Batch]:
    trainer = trl.DPOTrainer(
        load_model(models.start, "cpu"),
        ref_model=load_model(models.reference, "cpu"),
        args=trl.DPOConfig(**settings(folder), **options),
        processing_class=load_tokenizer(models.start),
        train_dataset=Dataset.from_dict(PAIRS),
    )
    seen = trained(trainer)
    return their_step(trainer, models), dpo_pairs(seen)


@pytest.mark.parametrize(
    ("loss", "options"),
    [
        ("sigmoid", {}),
        ("ipo", {}),
        ("hinge", {"beta": 0.02}),
        ("robust", {"label_smoothing": 0.2}),
        ("sigmoid_norm", {"beta": 5.0}),
    ],
)
def test_a_step_of_dpo_is_that_of_trl(
    models: Models, tmp_path: Path, loss: str, options: dict[str, float]
) -> None:
    theirs, batch = dpo(models, tmp_path, loss_type=[loss], **options)
    ours = our_step(models, {"name": "dpo", "loss": {"name": loss, **options}}, batch)
    agree(f"dpo {loss}", ours, theirs)


def test_a_step_of_several_weighted_losses_is_that_of_trl(models: Models, tmp_path: Path) -> None:
    names, weights = ["sigmoid", "apo_zero", "nca_pair"], [0.8, 0.5, 0.3]
    theirs, batch = dpo(models, tmp_path, loss_type=names, loss_weights=weights)
    losses = [{"name": name, "weight": weight} for name, weight in zip(names, weights, strict=True)]
    ours = our_step(models, {"name": "dpo", "loss": losses}, batch)
    agree("dpo, several weighted", ours, theirs)


def test_a_step_of_dpo_with_a_precomputed_reference_is_that_of_trl(models: Models, tmp_path: Path) -> None:
    theirs, batch = dpo(models, tmp_path, precompute_ref_log_probs=True)
    asked = FrozenModel(models.reference, TrainerConfig(micro_batch_size=3), device="cpu")
    said = [one for _, one in sorted(asked.scores(batch.payloads), key=lambda answer: answer[0])]
    ours = learner({"name": "dpo"}, models.start, reference="precomputed")
    before = [parameter.detach().clone() for parameter in ours.policy.parameters()]
    metrics = ours.step(Batch(batch.payloads, scores={"reference": said}))
    agree(
        "dpo, reference precomputed",
        Step(moved(ours.policy.parameters(), before), metrics),
        theirs,
    )


# TRL has the likelihood of chosen responses as a mean over the tokens of a micro-batch: a pair each, then.
ONE_BY_ONE = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4}


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ({"name": "cpo"}, {"loss_type": "sigmoid"}),
        ({"name": "cpo", "label_smoothing": 0.1}, {"loss_type": "sigmoid", "label_smoothing": 0.1}),
        (
            {"name": "cpo", "loss": ["cpo_hinge", {"name": "chosen_nll", "weight": 0.5}]},
            {"loss_type": "hinge", "cpo_alpha": 0.5},
        ),
        ({"name": "cpo", "loss": ["cpo_ipo", "chosen_nll"]}, {"loss_type": "ipo"}),
        (
            {"name": "simpo"},
            {"loss_type": "simpo", "beta": 2.0, "simpo_gamma": 0.5, "cpo_alpha": 0.0},
        ),
    ],
    ids=["cpo", "cpo, smoothed", "cpo_hinge", "cpo_ipo", "simpo"],
)
def test_a_step_without_a_reference_is_that_of_trl(
    models: Models,
    tmp_path: Path,
    algorithm: dict[str, Any],
    options: dict[str, Any],
    request: pytest.FixtureRequest,
) -> None:
    trainer = CPOTrainer(
        load_model(models.start, "cpu"),
        args=CPOConfig(**settings(tmp_path, **ONE_BY_ONE), remove_unused_columns=False, **options),
        processing_class=load_tokenizer(models.start),
        train_dataset=Dataset.from_dict(PAIRS),
    )
    batch = labelled_pairs(trained(trainer))
    ours = our_step(models, algorithm, batch)
    agree(request.node.callspec.id, ours, their_step(trainer, models))


def test_a_step_of_orpo_is_that_of_trl(models: Models, tmp_path: Path) -> None:
    trainer = ORPOTrainer(
        load_model(models.start, "cpu"),
        args=ORPOConfig(**settings(tmp_path, **ONE_BY_ONE), remove_unused_columns=False),
        processing_class=load_tokenizer(models.start),
        train_dataset=Dataset.from_dict(PAIRS),
    )
    batch = labelled_pairs(trained(trainer))
    ours = our_step(models, "orpo", batch)
    agree("orpo", ours, their_step(trainer, models))


@pytest.mark.parametrize(("name", "loss"), [("sft", "nll"), ("dft", "dft")])
def test_a_step_on_demonstrations_is_that_of_trl(
    models: Models, tmp_path: Path, name: str, loss: str
) -> None:
    rows = {"prompt": ["12", "3", "456", "78"], "completion": PAIRS["rejected"]}
    trainer = trl.SFTTrainer(
        load_model(models.start, "cpu"),
        args=trl.SFTConfig(**settings(tmp_path), loss_type=loss),
        processing_class=load_tokenizer(models.start),
        train_dataset=Dataset.from_dict(rows),
    )
    seen = trained(trainer)
    payloads = [
        payload(tokens, attention, labels != -100)
        for inputs in seen
        for tokens, attention, labels in zip(
            inputs["input_ids"], inputs["attention_mask"], inputs["labels"], strict=True
        )
    ]
    ours = our_step(models, name, Batch(payloads))
    agree(name, ours, their_step(trainer, models))


def test_a_step_of_dpo_on_an_adapter_is_that_of_trl(models: Models, tmp_path: Path) -> None:
    """Both compare with the model without its adapter; both begin with the same random matrices."""
    lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    theirs = trl.DPOTrainer(
        load_model(models.start, "cpu"),
        args=trl.DPOConfig(**settings(tmp_path)),
        processing_class=load_tokenizer(models.start),
        train_dataset=Dataset.from_dict(PAIRS),
        peft_config=lora,
    )
    ours = learner({"name": "dpo"}, models.start, lora={"rank": 4, "alpha": 8})
    # Where one matrix is 0 the other has no gradient: both are to have one.
    torch.manual_seed(1)
    with torch.no_grad():
        its = [parameter for parameter in theirs.model.parameters() if parameter.requires_grad]
        before = [parameter.normal_(std=0.2).clone() for parameter in its]
        for mine, random in zip(ours.policy.parameters(), before, strict=True):
            mine.copy_(random)
    batch = dpo_pairs(trained(theirs))
    metrics = ours.step(batch)
    agree(
        "dpo with LoRA",
        Step(moved(ours.policy.parameters(), before), metrics),
        Step(moved(its, before), theirs.state.log_history[0]),
    )


def test_steps_of_dpo_with_a_reference_that_follows_are_those_of_trl(models: Models, tmp_path: Path) -> None:
    """After the second step it is a mixture of two models, which the third step reads."""
    theirs = trl.DPOTrainer(
        load_model(models.start, "cpu"),
        ref_model=load_model(models.start, "cpu"),
        args=trl.DPOConfig(
            **settings(tmp_path, max_steps=3, gradient_accumulation_steps=1),
            sync_ref_model=True,
            ref_model_sync_steps=2,
            ref_model_mixup_alpha=0.6,
        ),
        processing_class=load_tokenizer(models.start),
        train_dataset=Dataset.from_dict(PAIRS),
    )
    seen = trained(theirs)
    follows = {"name": "synchronised", "sync_every": 2, "mix": 0.6}
    ours = learner({"name": "dpo"}, models.start, reference=follows)
    before = [parameter.detach().clone() for parameter in ours.policy.parameters()]
    for inputs in seen:
        metrics = ours.step(dpo_pairs([inputs]))
    agree(
        "dpo, reference follows",
        Step(moved(ours.policy.parameters(), before), metrics),
        Step(moved(theirs.model.parameters(), before), theirs.state.log_history[2]),
    )
