"""TRL's GRPOTrainer over rollout groups of the store.

The explorers of the run sample and its processors give rewards, so of GRPOTrainer there remain the loss, the
optimizer and the checkpoints. `draws` replaces its data loader: it draws the rows of a step after the
checkpoint of the step before, and never earlier, because a draw gives back a batch that is not committed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from transformers import TrainerCallback, TrainerControl
from trl import GRPOConfig, GRPOTrainer

from trinity_db.api.trainer import Batch, Trainer
from trinity_db.errors import TrinityError
from trinity_db.trl.arguments import check
from trinity_db.trl.micro_batches import Layout, micro_batches


class StoreGRPOTrainer(GRPOTrainer):  # type: ignore[misc]  # trl is in .venv-peers only
    """GRPOTrainer of TRL for a run with `algorithm: external`, whose rows it uses exactly once.

    Each step draws the run's next batch, with the log-probabilities of the policies that sampled it and the
    run's advantages, and commits it. Checkpoints are those of the store, from which `train` continues.
    """

    def __init__(
        self,
        store_trainer: Trainer,
        args: GRPOConfig,
        *,
        callbacks: Sequence[TrainerCallback] = (),
        optimizers: tuple[Any, Any] = (None, None),
    ) -> None:
        """Load the starting model of the run, which is also TRL's reference model.

        Args:
            store_trainer: what `with store.trainer(run)` returns.
            args: of TRL. `max_steps` is by default that of the run.

        Raises:
            ConfigError: if an argument has no meaning for rows of a store.
        """
        check(args)
        args.max_steps = args.max_steps if args.max_steps > 0 else store_trainer.steps
        args.ignore_data_skip = True  # the store gives back what a checkpoint lacks
        self.store_trainer = store_trainer
        self._batch: Batch | None = None
        self._checkpoint_folder: Path | None = None
        self._loss = 0.0
        super().__init__(
            model=str(store_trainer.start_folder),
            reward_funcs=_no_reward,
            args=args,
            train_dataset=Dataset.from_dict({"prompt": [""] * args.generation_batch_size}),
            callbacks=[*callbacks, _Commits(self)],
            optimizers=optimizers,
        )

    def train(self) -> Any:
        """Train from the newest checkpoint of the run, if any, until the run has no further step.

        Raises:
            LeaseLost, SetBack: see `trinity_db.Batch.commit`.
        """
        folder = self.store_trainer.resume_folder
        return super().train(resume_from_checkpoint=None if folder is None else str(folder))

    def get_train_dataloader(self) -> "_Draws":
        """Return the batches of the store, one after the other."""
        return _Draws(self)

    def draw(self) -> Iterator[dict[str, Tensor]] | None:
        """Draw the rows of the next step, in micro-batches. None: the run has no further step."""
        self._batch = batch = self.store_trainer.draw()
        if batch is None:
            return None
        self._loss = 0.0
        args = self.args
        layout = Layout(
            number=args.gradient_accumulation_steps,
            size=args.per_device_train_batch_size,
            temperature=args.temperature,
            run_temperature=self.store_trainer.temperature,
            pad_id=self._tokenizer.pad_token_id,
        )
        metrics = self._metrics["train"]
        rewards = [row.reward for row in batch if row.reward is not None]
        metrics["reward"].append(sum(rewards) / max(1, len(rewards)))
        metrics["completions/mean_length"].append(
            sum(int(row.action_mask.sum()) for row in batch) / len(batch)
        )
        return micro_batches(batch, layout)

    def commit(self) -> None:
        """Commit the batch of the step that the optimizer has made."""
        assert self._batch is not None, "the optimizer makes no step without a batch"
        self._batch.commit({"loss": self._loss})

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> Tensor:
        """Compute the gradient of a micro-batch, and add its loss to that of the step."""
        loss: Tensor = super().training_step(model, inputs, num_items_in_batch)
        self._loss += loss.item()
        return loss

    def _prepare_inputs(self, generation_batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Move a micro-batch to the device. With a divergence, add the reference's log-probabilities."""
        inputs = {name: values.to(self.accelerator.device) for name, values in generation_batch.items()}
        if self.beta:
            inputs["ref_per_token_logps"] = self._reference_logprobs(inputs)
        return inputs

    def _reference_logprobs(self, inputs: dict[str, Tensor]) -> Tensor:
        token_ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        width = inputs["completion_ids"].shape[1]
        logprobs: Tensor
        with torch.no_grad():
            logprobs, *_ = self._get_per_token_logps_and_entropies(self.ref_model, token_ids, mask, width)
        return logprobs

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Let transformers write its checkpoint to a folder of the store instead of `output_dir`."""
        with self.store_trainer.checkpoint() as folder, self._saving_to(folder):
            super()._save_checkpoint(model, trial)
            (written,) = folder.iterdir()
            for path in list(written.iterdir()):
                path.rename(folder / path.name)
            written.rmdir()

    @contextmanager
    def _saving_to(self, folder: Path) -> Iterator[None]:
        self._checkpoint_folder = folder
        try:
            yield
        finally:
            self._checkpoint_folder = None

    def _get_output_dir(self, trial: Any) -> str:
        return (
            super()._get_output_dir(trial)
            if self._checkpoint_folder is None
            else str(self._checkpoint_folder)
        )


class _Draws:
    """The micro-batches of all steps, in the form of a data loader."""

    def __init__(self, trainer: StoreGRPOTrainer) -> None:
        self._trainer = trainer

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        while (step := self._trainer.draw()) is not None:
            yield from step


class _Commits(TrainerCallback):  # type: ignore[misc]  # transformers has no types
    """Commits each step and publishes versions, when transformers' loop has made the step."""

    def __init__(self, trainer: StoreGRPOTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: TrainerControl, **more: Any) -> None:
        step = self._trainer.store_trainer.step
        if state.global_step != step:
            raise TrinityError(
                f"The run is at step {step}, and TRL at step {state.global_step} of its checkpoint: continue "
                "with the program that wrote the checkpoint."
            )

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **more: Any) -> None:
        trainer = self._trainer
        trainer.commit()
        if trainer.store_trainer.is_version_due and not control.should_save:
            with trainer.store_trainer.publish() as folder:
                trainer.save_model(str(folder), _internal_call=True)

    def on_epoch_end(self, args: Any, state: Any, control: TrainerControl, **more: Any) -> TrainerControl:
        """End the loop when the run has no further step, with a checkpoint of the last one."""
        control.should_training_stop = True
        control.should_save = not self._trainer.store_trainer.is_saved
        return control


def _no_reward(**columns: Any) -> list[float]:
    """GRPOTrainer wants a function of rewards. None is called: the rewards are in the store."""
    raise AssertionError
