"""Arguments of TRL that have no meaning for rows of a store, or none with exact counts of uses."""

from typing import Any

from trinity_db.errors import ConfigError


def check(args: Any) -> None:
    """Refuse arguments of a GRPOConfig.

    Raises:
        ConfigError: with the argument and the remedy.
    """
    explorers = "the run's explorers sample"
    refused = {
        "steps_per_generation": (
            args.steps_per_generation != args.gradient_accumulation_steps,
            "a batch of the store is one step: leave it out",
        ),
        "num_iterations": (args.num_iterations != 1, "a batch of the store is one step: leave it out"),
        "use_vllm": (args.use_vllm, f"{explorers}: name their engine in the run's configuration"),
        "eval_strategy": (args.eval_strategy != "no", f"{explorers}: use trinity-db evaluate"),
        "mask_truncated_completions": (
            args.mask_truncated_completions,
            "drop or mark such rows with a processing step",
        ),
        "log_completions": (args.log_completions, "the store has them: use trinity-db show"),
        "load_best_model_at_end": (args.load_best_model_at_end, "choose a version with trinity-db evaluate"),
        "auto_find_batch_size": (args.auto_find_batch_size, "it would repeat steps that are committed"),
        "save_only_model": (args.save_only_model, "a run continues from the optimizer's state: leave it out"),
    }
    for name, (is_refused, remedy) in refused.items():
        if is_refused:
            raise ConfigError(
                f"GRPOConfig.{name}: {getattr(args, name)} does not fit a run of a store; {remedy}."
            )
    if args.world_size > 1:
        raise ConfigError(
            "StoreGRPOTrainer works in one process: start it without accelerate launch or torchrun."
        )
