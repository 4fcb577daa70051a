"""Tasks of verifiers v1: its harness runs the attempt, and queries the policy over the recording endpoint."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

KEY_VARIABLE = "TRINITY_DB_ATTEMPT_KEY"  # verifiers reads keys from variables; a process has one attempt


class VerifiersTask:
    """A task of a taskset, attempted by one agent on this machine. Its rewards keep their names.

    Args:
        taskset: id of the taskset: the module that exports it; or several, selected by each task's column
            `taskset`.
        config: options of the taskset.
        harness: id of the program that runs the attempt; null is a plain conversation with tools.
    """

    def __init__(
        self, *, taskset: str | Sequence[str], config: Mapping[str, Any] | None = None, harness: str = "null"
    ) -> None:
        # Imported when the attempt starts, since it takes seconds.
        from verifiers.v1.envs.single_agent import SingleAgentEnv, SingleAgentEnvConfig

        self._make = SingleAgentEnv
        self._configured = SingleAgentEnvConfig
        self._tasksets = [taskset] if isinstance(taskset, str) else list(taskset)
        self._config = dict(config or {})
        self._agent = {"harness": {"id": harness}, "runtime": {"type": "subprocess"}}

    async def attempt(self, *, task: Mapping[str, Any], url: str, key: str) -> Mapping[str, float]:
        """Attempt the task's entry `index` (default 0) of the taskset.

        Raises:
            ValueError: if the task names a module that the configuration does not list.
            RuntimeError: with the errors recorded by verifiers.
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
        if not episode.ok:  # verifiers records errors as data; a failure must not count as a reward of 0
            errors = [error for trace in episode.traces for error in trace.errors]
            raise RuntimeError(
                "; ".join(f"{error.type}: {error.message}" for error in errors) or "no episode"
            )
        [trace] = episode.traces
        return {name: reward.value for name, reward in trace.rewards.items() if reward is not None}

    def _named(self, column: Any) -> str:
        """Return the module of a task. Tasks are data, so they may only select configured modules."""
        if column is None and len(self._tasksets) == 1:
            return self._tasksets[0]
        if column not in self._tasksets:
            raise ValueError(
                f"the task's column 'taskset' is {column!r:.100}, which the environment's option taskset "
                "does not list"
            )
        return str(column)
