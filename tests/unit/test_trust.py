"""Which keys of a configuration may name something outside the store."""

from trinity_db.config.shared import ModelConfig
from trinity_db.run import trust
from trinity_db.run.configuration import RunConfig

NAMES_WHAT_IS_OUTSIDE = {
    *("explorer.engine.arguments", "explorer.engine.key_env", "explorer.engine.model"),
    *("explorer.engine.python", "explorer.engine.urls"),
    *("explorer.environment.name", "explorer.environment.python"),
    *("explorer.tasks.query", "explorer.workflow.command", "explorer.workflow.check"),
    *("metrics.mlflow.experiment", "metrics.mlflow.tracking_uri"),
    *("metrics.tensorboard", "metrics.wandb.project"),
    *(
        "model.chat_template",
        "model.path",
        "model.revision",
        "ray.explore.resources",
        "ray.process.resources",
        "ray.train.resources",
    ),
    *("sampler.experts", "sampler.parts", "sampler.parts.sampler.where", "sampler.query", "sampler.where"),
    *("trainer.broadcast", "trainer.checkpoints", "trainer.weights"),
    *("trainer.optimizer.function", "trainer.optimizer.options"),
}


def test_each_key_that_takes_any_text_is_decided_upon() -> None:
    free = set(trust.free_text_keys(RunConfig))
    decided = {key for key in free if not key.startswith("algorithm.")} - trust.INERT - trust.FUNCTIONS
    assert decided == NAMES_WHAT_IS_OUTSIDE


def test_prompts_and_values_of_a_chat_template_name_nothing_outside_the_store() -> None:
    prompts = {"system_prompt": "Be brief.", "chat_template_kwargs": {"effort": "high", "more": {"a": "b"}}}
    model = ModelConfig.model_validate({"run": "other", **prompts})
    assert not list(trust.references(model, "model"))
    named = ModelConfig.model_validate({"run": "other", **prompts, "chat_template": "chat.jinja"})
    assert list(trust.references(named, "model")) == [("model.chat_template", "chat.jinja")]
