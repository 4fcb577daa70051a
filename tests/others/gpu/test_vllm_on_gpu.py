"""vLLM on the GPU against plain transformers in float32: what the log-probabilities of its tokens are."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.others.vllm.checkpoints import PYTHON, build
from tests.others.vllm.references import References
from trinity_db.config.shared import ScratchConfig
from trinity_db.explorer.engines.engine import Completion, Request
from trinity_db.explorer.engines.settings import VLLMConfig
from trinity_db.explorer.engines.vllm.engine import VLLMEngine

MODEL = ScratchConfig(hidden_size=256, layers=2, heads=4, context=512)
NEAR = {"float32": 1e-3, "bfloat16": 0.3}  # nats

pytestmark = pytest.mark.timeout(900)  # a server starts in a minute


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two versions with canaries."""
    return build(MODEL, tmp_path_factory.mktemp("versions"), 2)


@pytest.fixture(params=NEAR)
def engine(request: pytest.FixtureRequest, device: str) -> Iterator[tuple[VLLMEngine, float]]:
    if device == "cpu":
        pytest.skip("make test-vllm tests it on a CPU")
    if not PYTHON.is_file():
        pytest.skip("no .venv-vllm: trinity-db engine install vllm --into .venv-vllm makes it")
    config = {"python": PYTHON, "dtype": request.param, "context": 512, "cache_gigabytes": 1}
    made = VLLMEngine(VLLMConfig.model_validate(config))
    yield made, NEAR[request.param]
    made.close()


def test_each_version_samples_with_the_log_probabilities_of_transformers(
    engine: tuple[VLLMEngine, float], versions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path))  # where the server's log is
    served, near = engine
    references = References(dict(enumerate(versions)))
    asked = [Request([seed % 200, 7, 11], 40, 1.0, seed) for seed in range(32)]

    async def sampled() -> list[Completion]:
        found = []
        for version, folder in enumerate(versions):
            await served.load(folder, version)
            found += await asyncio.gather(*(served.generate(one) for one in asked))
        return found

    answers = asyncio.run(sampled())
    assert {version for one in answers for version in one.versions} == {0, 1}
    for one, answer in zip(asked * 2, answers, strict=True):
        assert references.worst(one.prompt_ids, answer) < near
