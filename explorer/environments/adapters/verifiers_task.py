"""Tasks of verifiers v1: its harness plays, and asks the policy by its recording endpoint."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

KEY_VARIABLE = "TRINITY_DB_ATTEMPT_KEY"  # verifiers reads a key from a variable; a process has one attempt


class VerifiersTask:
    """A task of a taskset, played by one agent on this machine. Its rewards keep their names.

    Args:
        taskset: its id: the module that exports it; or several, and each task's column `taskset` names one.
        config: of the taskset.
        harness: the id of the program that plays; null is a plain conversation with tools.
    """

    def __init__(
        self, *, taskset: str | Sequence[str], config: Mapping[str, Any] | None = None, harness: str = "null"
    ) -> None:
        # While the attempt starts, since it takes seconds.
        from verifiers.v1.envs.single_agent import SingleAgentEnv, SingleAgentEnvConfig

        self._make = SingleAgentEnv
        self._configured = SingleAgentEnvConfig
        self._tasksets = [taskset] if isinstance(taskset, str) else list(taskset)
        self._config = dict(config or {})
        self._agent = {"harness": {"id": harness}, "runtime": {"type": "subprocess"}}

    async def attempt(self, *, task: Mapping[str, Any], url: str, key: str) -> Mapping[str, float]:
        """Play the task's entry `index` (0, if it has none) of the taskset.

        Raises:
            ValueError: the task names a module that the configuration does not name.
            RuntimeError: with the errors that verifiers has on record.
        """
        from verifiers.v1.clients import ModelContext
        from verifiers.v1.configs.client import EvalClientConfig

        taskset = {**self._config, "id": self._named(task.get("taskset"))}
        environment = self._make(self._configured(taskset=taskset, agent=self._agent))
        [row] = environment.taskset.include(idx=[task.get("index") or 0])
        os.environ[KEY_VARIABLE] = key
        client = EvalClientConfig(base_url=f"{url}/v1", api_key_var=KEY_VARIABLE)
        async with environment.serving():
            episode = await environment.run_episode(row, ModelContext("policy", client))
        if not episode.ok:  # errors are data there; a failure must not count as a reward of 0
            errors = [error for trace in episode.traces for error in trace.errors]
            raise RuntimeError("; ".join(f"{one.type}: {one.message}" for one in errors) or "no episode")
        [trace] = episode.traces
        return {name: reward.value for name, reward in trace.rewards.items() if reward is not None}

    def _named(self, column: Any) -> str:
        """The module of a task. Tasks are data: they choose among modules that the configuration names."""
        if column is None and len(self._tasksets) == 1:
            return self._tasksets[0]
        if column not in self._tasksets:
            raise ValueError(
                f"the task's column 'taskset' is {column!r:.100}, which the option taskset of the "
                "environment does not name"
            )
        return str(column)
