"""Whole optimiser steps on rollout groups against TRL's trainers: the change of the weights.

The rows are stored ones, whose responses an older policy sampled, or those that TRL samples
and rewards itself.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trl
from datasets import Dataset
from torch import Tensor

from tests.others.peers.steps import (
    ALGORITHM,
    Models,
    Step,
    agree,
    learner,
    moved,
    our_step,
    payload,
    settings,
    their_step,
)
from trinity_db.arrays.codec import Payload
from trinity_db.models import load_model, load_tokenizer
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.algorithms.policy_gradient import PolicyGradient
from trinity_db.trainer.learner.gathered_columns import Batch


def logprobs(model: Any, tokens: Tensor) -> Tensor:
    """[B, T - 1] Of each token but the first."""
    with torch.no_grad():
        logits = model(tokens).logits[:, :-1]
    scores: Tensor = logits.log_softmax(-1)
    return scores.gather(-1, tokens[:, 1:, None])[..., 0]


def stored_rows(start: Path, spread: float) -> dict[str, Tensor]:
    """Responses sampled by a policy whose log-probabilities differ from the model's."""
    generator = torch.Generator().manual_seed(0)
    lengths, width = torch.tensor([6, 1, 3, 8, 5, 2, 8, 4]), 8
    prompts = torch.randint(10, (8, 3), generator=generator)
    completions = torch.randint(10, (8, width), generator=generator)
    now = logprobs(load_model(start, "cpu"), torch.cat([prompts, completions], dim=1))[:, -width:]
    mask = (torch.arange(width) < lengths[:, None]).long()
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": completions,
        "completion_mask": mask,
        "advantages": torch.randn(8, generator=generator),
        "old_per_token_logps": now + spread * torch.randn(8, width, generator=generator),
        "num_items_in_batch": mask.sum(),
    }


def sampled(rows: dict[str, Tensor]) -> list[Payload]:
    prompts, completions, trained = rows["prompt_ids"], rows["completion_ids"], rows["completion_mask"].bool()
    tokens = torch.cat([prompts, completions], dim=1)
    attention = torch.cat([rows["prompt_mask"].bool(), trained], dim=1)
    trains = torch.cat([torch.zeros_like(prompts, dtype=torch.bool), trained], dim=1)
    old = rows["old_per_token_logps"]
    return [
        payload(tokens[row], attention[row], trains[row], old[row][trained[row]])
        for row in range(len(tokens))
    ]


def policy_trainer(kind: Any, model: Any, reward: Any, folder: Path, **options: Any) -> Any:
    """Two groups of four responses, a group to each of two micro-batches."""
    config = trl.RLOOConfig if issubclass(kind, trl.RLOOTrainer) else trl.GRPOConfig
    common = {"num_generations": 4, "max_completion_length": 8}
    return kind(
        model,
        reward,
        args=config(**settings(folder, per_device_train_batch_size=4, **common, **options)),
        processing_class=load_tokenizer(Path(model.config._name_or_path)),
        train_dataset=Dataset.from_dict({"prompt": ["1", "23"]}),
    )


def no_reward(prompts: list[Any], **_: Any) -> list[float]:
    """TRL wants one although the rows bring their advantages."""
    return [0.0] * len(prompts)


STORED = [
    ("grpo", {"name": "grpo", "aggregation": "seq_mean_token_mean"}, {"loss_type": "grpo"}),
    ("dapo", "dapo", {"loss_type": "dapo", "epsilon_high": 0.28}),
    ("dr_grpo", {"name": "dr_grpo", "length": 8}, {"loss_type": "dr_grpo"}),
    ("cispo", {"name": "cispo", "clip_high": 4.0}, {"loss_type": "cispo", "epsilon_high": 5.0}),
    ("sapo", "sapo", {"loss_type": "sapo"}),
    (
        "gspo",
        "gspo",
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon": 3e-4,
            "epsilon_high": 4e-4,
        },
    ),
]


@pytest.mark.parametrize("spread", [0.35, 1.5])
@pytest.mark.parametrize(("name", "algorithm", "options"), STORED, ids=[case[0] for case in STORED])
def test_a_step_on_stored_rows_is_that_of_trl(
    models: Models,
    tmp_path: Path,
    name: str,
    algorithm: Any,
    options: dict[str, Any],
    spread: float,
) -> None:
    rows = stored_rows(models.start, spread)

    class FromRows(trl.GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, _: Any) -> dict[str, Tensor]:
            return dict(rows)

    trainer = policy_trainer(FromRows, load_model(models.start, "cpu"), no_reward, tmp_path, **options)
    trainer.train()
    batch = Batch(sampled(rows), {"advantages": rows["advantages"].numpy()})
    ours = our_step(models, algorithm, batch)
    agree(f"{name}, stored rows", ours, their_step(trainer, models))


@pytest.mark.parametrize("name", ["grpo", "dapo", "cispo", "gspo"])
def test_several_updates_by_one_batch_are_trls_iterations(models: Models, tmp_path: Path, name: str) -> None:
    case: Any = next(case for case in STORED if case[0] == name)
    _, algorithm, options = case
    rows = stored_rows(models.start, 0.2)

    class FromRows(trl.GRPOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, _: Any) -> dict[str, Tensor]:
            return dict(rows)

    often = {"num_iterations": 3, "max_steps": 3, "learning_rate": 0.1}
    trainer = policy_trainer(
        FromRows, load_model(models.start, "cpu"), no_reward, tmp_path, **options, **often
    )
    trainer.train()
    batch = Batch(sampled(rows), {"advantages": rows["advantages"].numpy()})
    one = learner(algorithm, models.start, updates_per_batch=3, learning_rate=0.1)
    metrics = one.step(batch)
    ours = Step(moved(one.policy.model.parameters(), load_model(models.start, "cpu").parameters()), metrics)
    theirs = their_step(trainer, models)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 3
    assert metrics["loss"] == pytest.approx(sum(losses) / 3, abs=1e-5)
    agree(f"{name}, three updates", ours, theirs._replace(metrics={}))


@pytest.mark.parametrize("spread", [0.05, 0.35])
def test_a_step_of_rloo_on_stored_rows_is_that_of_trl(models: Models, tmp_path: Path, spread: float) -> None:
    rows = stored_rows(models.start, spread)
    mask, old = rows["completion_mask"], rows["old_per_token_logps"]

    class FromRows(trl.RLOOTrainer):  # type: ignore[misc]
        def _generate_and_score_completions(self, _: Any) -> dict[str, Tensor]:
            return rows | {"old_logps": (old * mask).sum(dim=1)}

    trainer = policy_trainer(FromRows, load_model(models.start, "cpu"), no_reward, tmp_path, beta=0.0)
    trainer.train()
    batch = Batch(sampled(rows), {"advantages": rows["advantages"].numpy()})
    algorithm = {"name": "rloo", "loss": "sequence_clip", "aggregation": "seq_mean_token_mean"}
    agree("rloo, stored rows", our_step(models, algorithm, batch), their_step(trainer, models))


LIVE = [
    (
        "rloo",
        trl.RLOOTrainer,
        {
            "name": "rloo",
            "loss": "sequence_clip",
            "aggregation": "seq_mean_token_mean",
            "kl": {"name": "k1", "coefficient": 0.05},
        },
        {"beta": 0.05},
    ),
    (
        "dr_grpo",
        trl.GRPOTrainer,
        {"name": "dr_grpo", "length": 8, "kl": {"name": "corrected_k3", "coefficient": 0.04}},
        {"beta": 0.04, "loss_type": "dr_grpo", "scale_rewards": "none"},
    ),
]


@pytest.mark.parametrize(("name", "kind", "algorithm", "options"), LIVE, ids=[case[0] for case in LIVE])
def test_a_step_on_what_trl_samples_and_rewards_is_that_of_trl(
    models: Models, tmp_path: Path, name: str, kind: Any, algorithm: Any, options: dict[str, Any]
) -> None:
    rows: dict[str, Tensor] = {}
    rewards: list[float] = []

    class Recording(kind):  # type: ignore[misc]
        def _generate_and_score_completions(self, inputs: Any) -> Any:
            made = super()._generate_and_score_completions(inputs)
            rows.update({name: value for name, value in made.items() if isinstance(value, Tensor)})
            return made

    def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
        rewards.extend(sum(tokens) % 7 / 7 for tokens in completion_ids)
        return rewards

    model = load_model(models.start, "cpu")
    model.config._name_or_path = str(models.reference)  # where TRL takes the reference from
    trainer = policy_trainer(Recording, model, reward, tmp_path, **options)
    trainer.train()
    # Each row by itself, so that nothing stands before its prompt.
    start, width = load_model(models.start, "cpu"), rows["completion_ids"].shape[1]
    prompts = [
        prompt[mask.bool()] for prompt, mask in zip(rows["prompt_ids"], rows["prompt_mask"], strict=True)
    ]
    whole = [torch.cat(parts)[None] for parts in zip(prompts, rows["completion_ids"], strict=True)]
    old = torch.cat([logprobs(start, tokens)[:, -width:] for tokens in whole])
    payloads = sampled(rows | {"old_per_token_logps": old})

    assert len({payload.num_trained for payload in payloads}) > 2
    recipe = create(ALGORITHM.validate_python(algorithm))
    assert isinstance(recipe, PolicyGradient)
    columns = {"rewards": np.array(rewards), "groups": np.arange(8) // 4}
    batch = Batch(payloads, columns | {"advantages": recipe.advantages(columns)})
    agree(f"{name}, with its rewards", our_step(models, algorithm, batch), their_step(trainer, models))
