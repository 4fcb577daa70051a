"""The engine `vllm` with a real server: versions, log-probabilities, and what happens when it fails."""

import asyncio
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import peft
import pytest
import torch

from tests.others.vllm import metrics
from tests.others.vllm.references import References, versions_within
from trinity_db.errors import ConfigError
from trinity_db.explorer.engines.engine import Completion, EngineFailed, Request, Scores
from trinity_db.explorer.engines.settings import VLLMConfig
from trinity_db.explorer.engines.vllm.engine import VLLMEngine
from trinity_db.explorer.engines.vllm.inside import trinity_worker
from trinity_db.explorer.engines.vllm.server import Server
from trinity_db.models import load_model
from trinity_db.models.chat.prompts import PromptTooLong

pytestmark = pytest.mark.timeout(900)  # a server starts in half a minute, on a busy machine in two
LONG, SHORT = 400, 40  # tokens of a response
URL = "http://vllm"  # at the server's socket
# A worker that claims the next load and does nothing, once it is told to.
WORKER = """
from pathlib import Path
import trinity_worker_of_the_project as real

SKIPS = Path({skips!r})

class Worker(real.Worker):
    def trinity_load(self, weights_path):
        if SKIPS.exists():
            SKIPS.unlink()
            return {{}}
        return super().trinity_load(weights_path)
"""


class Served:
    """An engine in an event loop of its own."""

    def __init__(self, engine: VLLMEngine, skips: Path) -> None:
        self.engine = engine
        self.skips = skips
        """A file that makes the next load in flight do nothing."""
        self._runner = asyncio.Runner()

    def load(self, folder: Path, version: int) -> None:
        self._runner.run(self.engine.load(folder, version))

    def score(self, prompt: list[int]) -> Scores:
        return self._runner.run(self.engine.score(prompt))

    def sample(self, requests: list[Request]) -> list[Completion]:
        return self.during(asyncio.sleep(0), requests)

    def during(self, coroutine: object, requests: list[Request]) -> list[Completion]:
        """The answers to requests, while something else goes on."""

        async def both() -> list[Completion]:
            asked = [asyncio.create_task(self.engine.generate(one)) for one in requests]
            await coroutine  # type: ignore[misc]
            return await asyncio.gather(*asked)

        return self._runner.run(both())

    @property
    def server(self) -> Server:
        assert self.engine._server is not None
        return self.engine._server

    @property
    def group(self) -> int:
        assert self.server._process is not None
        return self.server._process.pid

    def close(self) -> None:
        self._runner.close()
        self.engine.close()


@pytest.fixture(scope="module")
def served(
    python: Path, checkpoints: list[Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """An engine with version 0, whose worker skips a load when a test says so."""
    folder = tmp_path_factory.mktemp("worker")
    real = Path(trinity_worker.__file__)
    shutil.copy(real, folder / "trinity_worker_of_the_project.py")
    skips = folder / "skips"
    (folder / "trinity_worker.py").write_text(WORKER.format(skips=str(skips)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRINITY_DB_HOME", str(folder / "home"))
        patch.setattr("trinity_db.explorer.engines.vllm.server.INSIDE", folder)
        one = Served(VLLMEngine(VLLMConfig(python=python, max_sequences=64)), skips)
        one.load(checkpoints[0], 0)
        yield one
        group = one.group
        one.close()
        assert members(group) == {}
        assert not one.engine._log.exists()


@pytest.fixture(scope="module")
def references(checkpoints: list[Path]) -> References:
    return References(dict(enumerate(checkpoints)))


def members(group: int) -> dict[str, int]:
    """The processes of a group that live, by their names."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            before, _, rest = path.read_text().rpartition(")")
        except OSError:
            continue
        state, _, of_group = rest.split()[:3]
        if int(of_group) == group and state != "Z":
            pid, _, name = before.partition(" (")
            found[name] = int(pid)
    return found


def requests(number: int, length: int, temperature: float) -> list[Request]:
    return [Request([seed % 200, 7, 11], length, temperature, seed) for seed in range(number)]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_log_probabilities_are_those_of_the_distribution_that_was_sampled_from(
    served: Served, references: References, temperature: float
) -> None:
    asked = requests(16, SHORT, temperature)
    for request, answer in zip(asked, served.sample(asked), strict=True):
        worst = references.worst(
            request.prompt_ids, answer, temperature=temperature or 1.0, greedy=not temperature
        )
        assert worst < 1e-4
        end = served.engine.tokenizer.eos_token_id
        assert (answer.token_ids[-1] == end) == (answer.finish_reason == "stop")
        assert end not in answer.token_ids[:-1]


def test_the_same_seed_gives_the_same_response_alone_and_among_others(served: Served) -> None:
    asked = requests(40, SHORT, 1.0)
    assert served.sample(asked)[3] == served.sample(asked[3:4])[0]


def test_each_token_is_of_the_version_that_it_names_while_weights_change(
    served: Served, references: References, checkpoints: list[Path]
) -> None:
    async def swaps() -> None:
        await sampled(
            server, len(asked)
        )  # no more: a load may take as long as the responses on a busy machine
        for version in (1, 2, 3):
            await served.engine.load(checkpoints[version], version)

    asked = [*requests(24, LONG, 0.0), *requests(24, LONG, 1.0)]
    server = served.server
    answers = served.during(swaps(), asked)
    assert max(map(len, versions_within(answers))) > 1, "weights changed within responses"
    for request, answer in zip(asked, answers, strict=True):
        assert references.worst(request.prompt_ids, answer, greedy=not request.temperature) < 1e-4
    assert served.server is server, "it was not started again"
    served.load(checkpoints[0], 0)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own
def test_adapters_are_merged_while_responses_are_in_flight(
    served: Served, checkpoints: list[Path], adapters: list[Path]
) -> None:
    """Each token is as likely as peft says, which computes the adapter beside the weights of the base."""

    async def swaps() -> None:
        await sampled(server, len(asked))
        for version, folder in enumerate(adapters, 1):
            await served.engine.load(folder, version)

    models: dict[int, Path | torch.nn.Module] = {0: checkpoints[0]}
    for version, folder in enumerate(adapters, 1):
        models[version] = peft.PeftModel.from_pretrained(load_model(checkpoints[0], "cpu"), str(folder))
    references = References(models)
    said = [references.logprobs(version, list(range(40))) for version in models]
    assert all((one - other).abs().max() > 0.1 for one, other in pairwise(said)), "they can be told apart"
    asked = [*requests(24, LONG, 0.0), *requests(24, LONG, 1.0)]
    server = served.server
    answers = served.during(swaps(), asked)
    assert max(map(len, versions_within(answers))) > 1, "weights changed within responses"
    for request, answer in zip(asked, answers, strict=True):
        assert references.worst(request.prompt_ids, answer) < 3e-4  # nats; merged weights round otherwise
    assert served.server is server, "it was not started again"
    merged = [path for path in server.folder.rglob("model.safetensors") if not path.is_symlink()]
    assert len(merged) == 1, "those of versions before are gone"
    served.load(checkpoints[0], 0)


def test_prompts_are_scored_as_by_transformers(served: Served, checkpoints: list[Path]) -> None:
    served.load(checkpoints[0], 0)
    prompt = [7 * place % 250 for place in range(300)]
    expected = References({0: checkpoints[0]}).logprobs(0, prompt)
    scores = served.score(prompt)
    torch.testing.assert_close(
        torch.tensor(scores.logprobs), expected[range(299), prompt[1:]], atol=1e-4, rtol=0
    )
    likeliest, highest = zip(*scores.likeliest, strict=True)
    torch.testing.assert_close(torch.tensor(highest), expected.amax(-1), atol=1e-4, rtol=0)
    assert list(likeliest) == expected.argmax(-1).tolist()


def test_what_does_not_fit_is_refused(served: Served) -> None:
    for prompt in ([], [1] * 512):
        with pytest.raises(PromptTooLong, match="accepts 1 to 511"):
            served.sample([Request(prompt, 4)])
    (answer,) = served.sample([Request([1] * 508, 100, 1.0, 3)])
    assert len(answer.token_ids) <= 4


def test_a_stop_string_ends_a_response_with_the_token_that_completes_it(served: Served) -> None:
    (whole,) = served.sample([Request([5, 6, 7], SHORT, 0.0)])
    # Each token of this model is one byte, of which only some are characters.
    texts = [served.engine.tokenizer.decode([token]) for token in whole.token_ids]
    place = next(place for place, text in enumerate(texts) if text.isascii() and text not in texts[:place])
    assert place < SHORT - 1
    (cut,) = served.sample([Request([5, 6, 7], SHORT, 0.0, stop=(texts[place], "never"))])
    assert cut.token_ids == whole.token_ids[: place + 1]
    assert len(cut.logprobs) == len(cut.versions) == place + 1
    assert cut.finish_reason == "stop"


def test_giving_responses_up_frees_their_places(served: Served) -> None:
    async def give_up() -> None:
        asked = [asyncio.create_task(served.engine.generate(one)) for one in requests(200, LONG, 0.0)]
        async with served.server.open_session() as session:
            await metrics.until(session, URL, metrics.IN_FLIGHT, 64)
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
            assert any(task.cancelled() for task in asked), "not all had ended before"
            async with asyncio.timeout(5):  # to sample them would take longer
                await metrics.until(session, URL, metrics.IN_FLIGHT, 0, most=0)

    served._runner.run(give_up())


async def sampled(server: Server, number: int) -> None:
    """Wait until the server has sampled so many tokens more."""
    async with server.open_session() as session:
        before = await metrics.count(session, URL, metrics.SAMPLED)
        await metrics.until(session, URL, metrics.SAMPLED, before + number)


def test_a_killed_server_is_started_again_and_loses_no_request(
    served: Served, references: References
) -> None:
    async def kill() -> None:
        await sampled(served.server, 10 * len(asked))
        groups.append(served.group)
        os.kill(members(served.group)["VLLM::EngineCor"], signal.SIGKILL)

    groups: list[int] = []
    asked = requests(40, LONG, 1.0)
    answers = served.during(kill(), asked)
    assert versions_within(answers) == {(0,)}
    differences = [
        references.worst(one.prompt_ids, answer) for one, answer in zip(asked, answers, strict=True)
    ]
    assert max(differences) < 1e-4
    assert members(groups[0]) == {}
    assert served.group != groups[0]


def test_weights_that_the_server_did_not_take_are_never_sampled_from(
    served: Served,
    references: References,
    checkpoints: list[Path],
    caplog: pytest.LogCaptureFixture,
) -> None:
    served.load(checkpoints[0], 0)
    served.skips.touch()
    group = served.group
    asked = requests(40, LONG, 1.0)
    with caplog.at_level(logging.WARNING, "trinity_db"):
        answers = served.during(served.engine.load(checkpoints[1], 1), asked)
    (line,) = (record.message for record in caplog.records if "restarting vLLM" in record.message)
    assert "stale or garbled" in line
    assert "version 1" in line
    assert served.group != group
    assert served.engine.version == 1
    assert all(
        references.worst(one.prompt_ids, answer) < 1e-4 for one, answer in zip(asked, answers, strict=True)
    )


def test_a_damaged_checkpoint_is_refused_and_the_server_goes_on(
    served: Served, checkpoints: list[Path], tmp_path: Path
) -> None:
    version, group = served.engine.version, served.group
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoints[2], damaged)
    os.truncate(damaged / "model.safetensors", 1000)
    with pytest.raises(ConfigError, match=r"damaged: vLLM cannot load it: model.safetensors is corrupted"):
        served.load(damaged, 7)
    with pytest.raises(ConfigError, match="no-such-folder"):
        served.load(tmp_path / "no-such-folder", 8)
    (answer,) = served.sample(requests(1, SHORT, 0.0))
    assert set(answer.versions) == {version}
    assert served.group == group


def test_a_checkpoint_whose_canary_says_something_else_is_refused_until_a_good_one_comes(
    served: Served, checkpoints: list[Path], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong"
    shutil.copytree(checkpoints[2], wrong)
    shutil.copy(checkpoints[3] / "canary.json", wrong)
    # Tensors that the trainer keeps beside the model are nothing to vLLM.
    shutil.copy(checkpoints[3] / "model.safetensors", wrong / "value_head.safetensors")

    async def refused_then_good() -> None:
        for _ in range(2):  # the second time at once
            with pytest.raises(ConfigError, match="refused: its weights are stale or garbled"):
                await served.engine.load(wrong, 2)
        assert served.engine._server is None
        (wrong / "canary.json").write_bytes((checkpoints[2] / "canary.json").read_bytes())
        await served.engine.load(wrong, 22)

    served.load(checkpoints[1], 1)
    asked = requests(40, LONG, 1.0)
    answers = served.during(refused_then_good(), asked)
    assert versions_within(answers) <= {(1,), (22,)}
    assert (22,) in versions_within(answers), "they waited, and were sampled anew"
    known = References({1: checkpoints[1], 22: checkpoints[2]})
    for request, answer in zip(asked, answers, strict=True):
        assert known.worst(request.prompt_ids, answer) < 1e-4


def test_an_engine_that_cannot_start_says_why(python: Path, checkpoints: list[Path], tmp_path: Path) -> None:
    config = VLLMConfig(python=python, arguments=("--no-such-argument",))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRINITY_DB_HOME", str(tmp_path))
        engine = VLLMEngine(config)
        with pytest.raises(EngineFailed, match=r"vLLM does not start: .*no-such-argument.* \(log: .*vllm-"):
            asyncio.run(engine.load(checkpoints[0], 0))
        engine.close()
