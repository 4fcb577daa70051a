"""How soon an explorer's engine samples with a version that was just published."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from trinity_db.explorer.config import VLLMConfig
from trinity_db.explorer.engines.engine import Engine, Request

PROMPT, RESPONSE = 16, 4  # tokens
SETTLE = 2  # versions are loaded in turn so often before the time is taken

Asked = tuple[str, Path | None, str, Sequence[Path]]
"""The engine, the interpreter that has vLLM, the device, and the folders of two versions."""


def load_new_version(asked: Asked) -> Callable[[], float]:
    """Load the first version. The returned function loads the second, and returns the seconds that passed
    before its first tokens came."""
    name, python, device, versions = asked
    runner, engine = asyncio.Runner(), _engine(name, python, device)
    for version in range(SETTLE):
        runner.run(_sampled(engine, versions[version % 2], version))

    def timed() -> float:
        start = time.perf_counter()
        runner.run(_sampled(engine, versions[SETTLE % 2], SETTLE))
        seconds = time.perf_counter() - start
        runner.close()
        engine.close()
        return seconds

    return timed


async def _sampled(engine: Engine, folder: Path, version: int) -> None:
    await engine.load(folder, version)
    prompt = np.arange(2, 2 + PROMPT).tolist()
    completion = await engine.generate(Request(prompt, RESPONSE))
    assert set(np.asarray(completion.versions).tolist()) == {version}


def _engine(name: str, python: Path | None, device: str) -> Engine:
    if name == "vllm":
        from trinity_db.explorer.engines.vllm.engine import VLLMEngine

        return VLLMEngine(VLLMConfig(python=python, context=2048))
    from trinity_db.explorer.engines.transformers_engine import TransformersEngine

    return TransformersEngine(device)
