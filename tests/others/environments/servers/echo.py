"""An OpenEnv server, made with the package itself: it says what it was told, three times, and counts."""

import sys
from typing import Any

import uvicorn
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app


class Say(Action):
    message: str
    loud: bool = False


class Heard(Observation):
    text: str


class Echoing(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State()

    def reset(self, seed: int | None = None, episode_id: str | None = None, **given: Any) -> Heard:
        self._state = State(step_count=0)
        return Heard(text=f"Say {given.get('word', 'something')}.")

    def step(self, action: Say, timeout_s: float | None = None, **given: Any) -> Heard:
        if action.message == "crash":
            raise RuntimeError("the echo is lost")
        self._state.step_count += 1
        text = action.message.upper() if action.loud else action.message
        return Heard(text=text, reward=float(len(text)), done=self._state.step_count == 3)

    @property
    def state(self) -> State:
        return self._state


if __name__ == "__main__":
    app = create_fastapi_app(Echoing, Say, Heard, max_concurrent_envs=2)
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
