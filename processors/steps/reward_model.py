"""A reward model: a checkpoint that scores a response with one number."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trinity_db.config.shared import ForwardConfig, ModelConfig, PromptConfig
from trinity_db.errors import ConfigError
from trinity_db.models import check_libraries, context_length, hub, load_tokenizer
from trinity_db.models.chat.prompts import ChatRenderer, UntokenizableText, encode, offered_tools, prompt_ids
from trinity_db.models.chat.replies import Replies
from trinity_db.models.folder_digest import digest
from trinity_db.postgres.connection import Database
from trinity_db.processors.lists.step import Answer, Context, Drop, step
from trinity_db.store import policies, runs
from trinity_db.weights.recorded_places import RecordedPlaces

_FORWARD = ForwardConfig()


@step(batch=256)
class RewardModel:
    """Scores the whole conversation, response included, with a reward model.

    The model is a checkpoint of the class AutoModelForSequenceClassification with one label, such as
    algorithm: reward_model produces. It reads messages through its own chat template. If it has a template,
    the plain prompt of a task becomes a user message, unless model.prompt_template is set; otherwise it reads
    the policy's prompt. A response that was not cut off ends in the way its template ends a turn. Rows longer
    than its context are dropped. `reward_event.detail` records the digest of its folder.

    Args:
        path: Folder of the checkpoint in Hugging Face format, with its tokenizer, or OWNER/NAME on the Hub.
            Each processor loads it.
        revision: Branch, tag or commit of a model on the Hub, like model.revision.
        run: Alternatively, the name of another run of this store that trained a reward model. Its latest
            checkpoint at the start of the processor is used.
        forward: Batching and precision: micro_batch_size, micro_batch_tokens and dtype, like in trainer.
    """

    def __init__(
        self,
        context: Context,
        *,
        path: Path | None = None,
        revision: str | None = None,
        run: str | None = None,
        forward: ForwardConfig = _FORWARD,
    ) -> None:
        from trinity_db.models import reward_model

        folder, self.loaded_digest = _folder(context, path, revision, run)
        self._model = reward_model.RewardModel(folder, forward)
        self._tokenizer = load_tokenizer(folder)
        prompts = PromptConfig(
            prompt_template=context.model.prompt_template, system_prompt=context.model.system_prompt
        )
        self._renderer = ChatRenderer(self._tokenizer, prompts)
        self._replies = Replies(ChatRenderer(self._tokenizer))
        self._context = context_length(folder)
        self._detail = {"reward_model": self.loaded_digest}

    @staticmethod
    def model_digest(
        context: Context, *, path: Path | None, revision: str | None, run: str | None, **options: Any
    ) -> str:
        """Return the digest of the folder that would be loaded now.

        Raises:
            ConfigError: if the folder is missing, or the other run has no checkpoint.
            NotFound: if the run does not exist.
        """
        return _folder(context, path, revision, run)[1]

    @staticmethod
    def check(
        model: ModelConfig, *, path: Path | None, revision: str | None, run: str | None, **options: Any
    ) -> None:
        """Find mistakes before the run is created, without loading a model. Another run is looked up later.

        Raises:
            ConfigError: if the reward model is missing.
        """
        from trinity_db.models import reward_model

        check_libraries("torch", "transformers")
        if (path is None) == (run is None):
            raise ConfigError("reward_model: give either path, a folder, or run, the name of another run.")
        if path is not None:
            folder = hub.folder(path, revision, with_weights=False)
            reward_model.check_reward_model(folder)
            load_tokenizer(folder)
        elif revision is not None:
            raise ConfigError("reward_model: revision applies to a model on the Hub, which path names.")

    def __call__(
        self,
        prompt: Sequence[str],
        messages: Sequence[Sequence[Mapping[str, Any]] | None],
        task: Sequence[Mapping[str, Any]],
        response: Sequence[str],
        finish_reason: Sequence[str | None],
    ) -> Iterator[tuple[int, Answer | Drop | Exception]]:
        """Yield the reward of each row, or the error of its scoring."""
        places, rows = [], []
        for index, row in enumerate(zip(prompt, messages, task, response, finish_reason, strict=True)):
            try:
                tokens = self._tokens(*row)
            except UntokenizableText as error:
                yield index, error
                continue
            if len(tokens) > self._context:
                yield index, self._too_long(tokens)
            else:
                places.append(index)
                rows.append(tokens)
        for number, reward in self._model.rewards(rows):
            if math.isfinite(reward):
                yield places[number], Answer(reward, self._detail)
            else:
                yield places[number], ValueError(f"the reward model returned {reward}, which is not finite")

    def _tokens(
        self,
        prompt: str,
        messages: Sequence[Mapping[str, Any]] | None,
        task: Mapping[str, Any],
        response: str,
        finish_reason: str | None,
    ) -> list[int]:
        """Return the tokens of a conversation, tokenised like the trainer tokenises imported ones."""
        tools = offered_tools(task)
        task_prompt = {"messages": messages, "prompt": task.get("prompt", prompt)}
        asked_messages = self._renderer.messages(task_prompt)
        asked_task = {"messages": asked_messages, "tools": tools} if asked_messages else {"prompt": prompt}
        if finish_reason == "length":  # nothing ends it
            text = self._renderer.ask(asked_messages, tools) if asked_messages else prompt
            return [*prompt_ids(text, self._tokenizer), *encode(response, self._tokenizer)]
        return [token for tokens, _ in self._replies.parts(asked_task, response) for token in tokens]

    def _too_long(self, tokens: Sequence[int]) -> Drop:
        return Drop("too_long_for_reward_model", {"tokens": len(tokens), "context": self._context})


def _folder(context: Context, path: Path | None, revision: str | None, run: str | None) -> tuple[Path, str]:
    """Return the folder of the reward model, and the digest of its files.

    Raises:
        ConfigError: if it is missing, the other run has no checkpoint, or its files differ from the record.
        NotFound: if the run does not exist.
    """
    if path is not None:
        folder = hub.folder(path, revision).absolute()
        return folder, _digest(folder)
    policy = _newest(context.database, run or "")
    RecordedPlaces().check_folder(policy)  # the run's own configuration may be a stored one, which is data
    digest_now = _digest(policy.checkpoint)
    if digest_now != policy.checkpoint_hash:
        raise ConfigError(
            f"reward_model: the files in {policy.checkpoint} differ from what run {run} published; "
            "restore them."
        )
    return policy.checkpoint, digest_now


def _digest(folder: Path) -> str:
    if not folder.is_dir():  # for example a checkpoint that was pruned meanwhile
        raise ConfigError(f"reward_model: {folder} is missing; restore it, or start again.")
    return digest(folder)


def _newest(database: Database, name: str) -> policies.PolicyVersion:
    """Return another run's newest version.

    Raises:
        ConfigError: if it has none.
        NotFound: if the run does not exist.
    """
    with database.transaction() as tx:
        policy = policies.newest(tx, runs.find(tx, name).id)
    if policy is None:
        raise ConfigError(f"reward_model: run {name} has no checkpoint yet; train it first.")
    return policy
