"""The decoding loop agrees with a plain forward pass and with transformers' own generation."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from trinity_db.config.shared import ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.engines import kv_cache, transformers_engine
from trinity_db.explorer.engines.decoded_rows import Row
from trinity_db.explorer.engines.engine import Completion, EngineFailed, Request, RequestRefused, sample_all
from trinity_db.explorer.engines.transformers_engine import TransformersEngine
from trinity_db.explorer.engines.trial import decodes_side_by_side
from trinity_db.models import build_scratch, folder_digest, load_model, load_tokenizer
from trinity_db.models.chat.prompts import PromptTooLong
from trinity_db.models.model_folder import write

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 1, 2], [3, 3], [2, 4, 6, 8]]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=32, context=32), 3, folder)
    return folder


@pytest.fixture
def engine(model_folder: Path) -> Iterator[TransformersEngine]:
    engine = TransformersEngine("cpu")
    load(engine, model_folder, version=4)
    yield engine
    engine.close()


def load(engine: TransformersEngine, folder: Path, version: int) -> None:
    asyncio.run(engine.load(folder, version))


def run(
    engine: TransformersEngine,
    prompts: list[list[int]],
    temperature: float = 1.0,
    seed: int = 0,
    max_new_tokens: int = 12,
) -> list[Completion]:
    """Completions in the order of the prompts, each with a seed of its own; all enter one batch."""
    requests = [
        Request(prompt, max_new_tokens, temperature, seed * 10_000 + place)
        for place, prompt in enumerate(prompts)
    ]

    async def complete() -> list[Completion]:
        with engine._changed:  # the engine's thread may be awake after a load
            tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
            await asyncio.sleep(0)  # each task has queued its request
        return await asyncio.gather(*tasks)

    return asyncio.run(complete())


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0, 1.5])
def test_stored_logprobs_equal_those_of_a_plain_forward_pass(
    engine: TransformersEngine, model_folder: Path, temperature: float
) -> None:
    model = load_model(model_folder, "cpu")
    for prompt, completion in zip(PROMPTS, run(engine, PROMPTS, temperature), strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0]
        logprobs = torch.log_softmax(logits / (temperature or 1.0), dim=-1)
        expected = [
            logprobs[len(prompt) - 1 + i, token].item() for i, token in enumerate(completion.token_ids)
        ]
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.fixture(scope="module")
def rounded_folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as a trainer publishes it in bfloat16."""
    return rounded(model_folder, tmp_path_factory.mktemp("rounded"), torch.bfloat16)


def rounded(model_folder: Path, folder: Path, dtype: torch.dtype) -> Path:
    """Write a model as a trainer publishes it in a number format."""
    model = load_model(model_folder, "cpu")
    folder_digest.complete(folder, write(model, model.state_dict(), folder, dtype))
    load_tokenizer(model_folder).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_in_16_bits_a_version_in_float32_is_rounded_as_a_trainer_rounds_it(
    model_folder: Path, tmp_path: Path, dtype: str
) -> None:
    found = []
    for folder in (model_folder, rounded(model_folder, tmp_path, getattr(torch, dtype))):
        engine = TransformersEngine("cpu", dtype=dtype)
        for version in (0, 1):  # it builds the model, and reads weights into it
            load(engine, folder, version)
            # One after the other: in float16 a row's numbers depend on the rows beside it.
            found.append([completion for prompt in PROMPTS for completion in run(engine, [prompt])])
        engine.close()
    assert [[one.logprobs for one in each] for each in found] == [[one.logprobs for one in found[0]]] * 4


def test_in_bfloat16_tokens_come_from_a_model_in_bfloat16_after_each_load(
    model_folder: Path, rounded_folder: Path
) -> None:
    engine = TransformersEngine("cpu", dtype="bfloat16")
    model = transformers.AutoModelForCausalLM.from_pretrained(rounded_folder, dtype=torch.bfloat16)
    for version in (0, 1):
        load(engine, model_folder, version)
        assert engine._model is not None
        buffers = [(name, buffer.dtype) for name, buffer in model.named_buffers()]
        assert [(name, buffer.dtype) for name, buffer in engine._model.named_buffers()] == buffers
        for prompt, completion in zip(PROMPTS, run(engine, PROMPTS), strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0].float()
            logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
            expected = logprobs.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0].tolist()
            # An engine in float32 differs by 0.018 here.
            assert completion.logprobs == pytest.approx(expected, abs=1e-2)
    engine.close()


def test_greedy_decoding_equals_that_of_transformers(engine: TransformersEngine, model_folder: Path) -> None:
    model = load_model(model_folder, "cpu")
    for prompt, completion in zip(PROMPTS, run(engine, PROMPTS, temperature=0.0), strict=True):
        expected = model.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=12)
        assert completion.token_ids == expected[0, len(prompt) :].tolist()


def test_a_prompts_neighbours_and_their_padding_change_nothing(engine: TransformersEngine) -> None:
    together = run(engine, PROMPTS, temperature=0.0)
    for prompt, completion in zip(PROMPTS, together, strict=True):
        (alone,) = run(engine, [prompt], temperature=0.0)
        assert completion.token_ids == alone.token_ids
        assert completion.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_tokens_are_sampled_from_the_distribution_of_the_temperature(
    engine: TransformersEngine, model_folder: Path
) -> None:
    number = 4000
    first = torch.tensor([c.token_ids[0] for c in run(engine, [[1, 2]] * number, 2.0, max_new_tokens=1)])
    with torch.no_grad():
        expected = (load_model(model_folder, "cpu")(torch.tensor([[1, 2]])).logits[0, -1] / 2.0).softmax(-1)
    seen = torch.bincount(first, minlength=len(expected)) / number
    # Four standard deviations of a share estimated from this many samples.
    assert torch.all((seen - expected).abs() < 4 * (expected * (1 - expected) / number).sqrt() + 1e-3)


def test_a_greedy_request_takes_the_likeliest_tokens_beside_others_that_are_sampled(
    engine: TransformersEngine,
) -> None:
    likeliest = run(engine, PROMPTS, temperature=0.0) * 4
    requests = [
        Request(prompt, 12, temperature=2.0 * (place % 2), seed=place)
        for place, prompt in enumerate(PROMPTS * 4)
    ]
    differing = 0
    for request, completion, expected in zip(requests, sample_all(engine, requests), likeliest, strict=True):
        if request.temperature:
            differing += completion.token_ids != expected.token_ids
        else:
            assert completion.token_ids == expected.token_ids
            assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    assert differing > len(requests) / 4


def test_the_seed_decides_the_sample(engine: TransformersEngine) -> None:
    tokens = [[one.token_ids for one in run(engine, PROMPTS, seed=seed)] for seed in (5, 5, 6)]
    assert tokens[0] == tokens[1] != tokens[2]


def test_a_sample_does_not_depend_on_what_is_sampled_beside_it(engine: TransformersEngine) -> None:
    computed: list[int] = []
    hook = engine._model.register_forward_pre_hook(
        lambda _, __, named: computed.append(len(named["input_ids"])), with_kwargs=True
    )
    together = run(engine, PROMPTS * 20, temperature=1.5)
    hook.remove()
    assert computed[:2] == [len(PROMPTS), 20 * len(PROMPTS)], "each prompt is computed once"
    for place in (0, 7, 42, 99):
        request = Request((PROMPTS * 20)[place], 12, 1.5, place)
        [alone] = sample_all(engine, [request])
        assert alone.token_ids == together[place].token_ids


def test_a_row_ends_at_its_end_token_or_its_limit(engine: TransformersEngine) -> None:
    limits = [3, 40, 1, 6]
    end = engine.tokenizer.eos_token_id
    requests = [
        Request([1, 2], limit, seed=100 * seed + place)
        for seed in range(30)
        for place, limit in enumerate(limits)
    ]
    reasons = set()
    for request, completion in zip(requests, sample_all(engine, requests), strict=True):
        stopped = completion.token_ids[-1] == end
        assert end not in completion.token_ids[:-1]
        assert completion.finish_reason == ("stop" if stopped else "length")
        assert stopped or len(completion.token_ids) == min(request.max_new_tokens, 30)
        reasons.add((request.max_new_tokens, completion.finish_reason))
    assert {(40, "stop"), (6, "stop"), (6, "length"), (1, "length")} <= reasons


def test_a_response_ends_with_the_token_that_completes_a_stop_string(engine: TransformersEngine) -> None:
    """It is the beginning of what would have been sampled without one, also beside rows that go on."""
    whole = run(engine, PROMPTS, max_new_tokens=20)
    texts = ["".join(map(engine.tokenizer.decode, one.token_ids)) for one in whole]
    place = next(place for place, text in enumerate(texts) if len(text) >= 10)
    stop = texts[place][4:6]
    stopped = sample_all(
        engine,
        [
            Request(prompt, 20, 1.0, seed, ("no such text", stop) if seed == place else ())
            for seed, prompt in enumerate(PROMPTS)
        ],
    )
    end = texts[place].index(stop) + 2
    assert stopped[place].token_ids == whole[place].token_ids[:end]
    assert len(stopped[place].logprobs) == len(stopped[place].versions) == end
    assert stopped[place].finish_reason == "stop"
    others = [one for one in range(len(PROMPTS)) if one != place]
    assert [stopped[one].token_ids for one in others] == [whole[one].token_ids for one in others]


def test_a_prompt_that_does_not_fit_is_refused(engine: TransformersEngine) -> None:
    assert len(run(engine, [[1] * 31])) == 1
    for length in (0, 32):
        with pytest.raises(PromptTooLong, match=f"A prompt of {length} tokens does not fit"):
            run(engine, [[1] * length])


@pytest.mark.parametrize("token", [-1, 12])
def test_a_token_that_the_model_does_not_know_is_refused_and_the_engine_goes_on(
    engine: TransformersEngine, token: int
) -> None:
    with pytest.raises(RequestRefused, match="outside of this model's vocabulary: 0 to 11"):
        run(engine, [[1, token]])
    assert len(run(engine, [[1, 11]])) == 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_weights_that_are_not_finite_give_log_probabilities_that_say_so(
    engine: TransformersEngine, model_folder: Path, temperature: float
) -> None:
    with torch.no_grad():
        engine._model.get_input_embeddings().weight.fill_(float("nan"))
    (completion,) = run(engine, [[1]], temperature, max_new_tokens=2)
    assert np.isnan(completion.logprobs).all()
    load(engine, model_folder, version=5)
    assert np.isfinite(run(engine, [[1]])[0].logprobs).all()


@pytest.mark.parametrize("is_known", [True, False])
def test_rows_that_are_given_up_while_the_batch_is_made_smaller_end_no_engine(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Their callers are in another thread, so this may happen between any two statements."""
    rows: list[Any] = []

    def asked(cache: Any) -> bool:
        for row in rows:
            row.ended = True
        return is_known

    random = np.random.default_rng(0)
    with torch.inference_mode():
        for _ in range(2):
            loop: Any = None
            rows.append(Row(Request([1, 2], 9), 9, random, loop, loop))
        engine._end_tokens = frozenset()
        batch = engine._begun([*rows])
        monkeypatch.setattr(kv_cache, "is_known", asked)
        rows[0].ended = True
        engine._decode(batch)
    assert (engine._batch or batch).rows == [rows[1]]


def test_a_response_is_given_out_while_longer_ones_go_on_and_another_takes_its_place(
    engine: TransformersEngine,
) -> None:
    """A row that ended does not wait for the rest of its batch, nor a new request for its end."""
    ended: list[str] = []

    async def one(name: str, request: Request) -> None:
        await engine.generate(request)
        ended.append(name)

    async def scenario() -> None:
        long = asyncio.create_task(one("long", replace(greedy, max_new_tokens=endless)))
        await one("short", Request([1], 1))
        for number in range(3):
            await one(f"later {number}", Request([2, 3], 2))
        assert not long.done()
        long.cancel()
        await asyncio.gather(long, return_exceptions=True)
        await one("after a response that was given up", Request([4], 2))

    engine._end_tokens = frozenset()
    engine.context = endless = 100_000
    engine._max_tokens = 100 * endless
    greedy = Request([1], 0)
    asyncio.run(scenario())
    assert ended == ["short", "later 0", "later 1", "later 2", "after a response that was given up"]


def test_more_requests_than_there_is_memory_for_wait(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TransformersEngine("cpu", max_tokens=60)
    load(engine, model_folder, 1)
    sizes = []
    advance = TransformersEngine._advance

    def watched(engine: TransformersEngine, batch: Any, *arguments: Any) -> None:
        advance(engine, batch, *arguments)
        sizes.append(len(batch.rows) * max(row.longest for row in batch.rows))

    monkeypatch.setattr(TransformersEngine, "_advance", watched)
    assert len(run(engine, [[1, 2, 3]] * 40)) == 40
    assert max(sizes) <= 60
    engine.close()


class Crowded(torch.nn.Module):
    """Adds to each embedding how many rows the call has, as a model in which neighbours change a row."""

    def __init__(self, embedding: Any) -> None:
        super().__init__()
        self.embedding = embedding
        self.num_embeddings = embedding.num_embeddings

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.embedding(tokens)
        return found + len(tokens)


def test_rows_whose_neighbours_would_change_them_are_decoded_alone(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowded = load_model(model_folder, "cpu")
    crowded.set_input_embeddings(Crowded(crowded.get_input_embeddings()))
    assert decodes_side_by_side(load_model(model_folder, "cpu"))
    assert not decodes_side_by_side(crowded)
    monkeypatch.setattr(transformers_engine, "load_model", lambda *_: crowded)
    engine = TransformersEngine("cpu")
    load(engine, model_folder, 0)
    together = run(engine, PROMPTS)
    engine.close()
    for prompt, completion in zip(PROMPTS, together, strict=True):
        with torch.no_grad():
            logits = crowded(torch.tensor([[*prompt, *completion.token_ids]])).logits[0]
        logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
        expected = logprobs.gather(-1, torch.tensor(completion.token_ids)[:, None])[:, 0].tolist()
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_model_whose_cache_loses_its_state_is_refused() -> None:
    sizes = {"vocab_size": 12, "hidden_size": 16, "state_size": 4, "num_hidden_layers": 1}
    config = transformers.MambaConfig(**sizes, max_position_embeddings=32, initializer_range=0.5)
    with pytest.raises(ConfigError, match=r"decodes MambaForCausalLM to other logits.*engine: vllm"):
        decodes_side_by_side(transformers.MambaForCausalLM(config).eval())


def test_tokens_after_a_weight_update_are_sampled_by_the_new_weights_over_the_whole_context(
    engine: TransformersEngine, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=32, context=32), 8, tmp_path)
    engine._end_tokens = frozenset()
    decode, steps = TransformersEngine._decode, asyncio.Semaphore(0)

    async def scenario() -> list[Completion]:
        loop = asyncio.get_running_loop()

        def counted(engine: TransformersEngine, batch: Any) -> None:
            decode(engine, batch)
            loop.call_soon_threadsafe(steps.release)

        monkeypatch.setattr(TransformersEngine, "_decode", counted)
        requests = [Request(prompt, 20, 1.0, place) for place, prompt in enumerate(PROMPTS)]
        asked = [asyncio.create_task(engine.generate(request)) for request in requests]
        for _ in range(3):
            await steps.acquire()
        await engine.load(tmp_path, version=5)
        return await asyncio.gather(*asked)

    models = {4: load_model(model_folder, "cpu"), 5: load_model(tmp_path, "cpu")}
    for prompt, completion in zip(PROMPTS, asyncio.run(scenario()), strict=True):
        assert completion.versions == sorted(completion.versions)
        assert set(completion.versions) == {4, 5}
        with torch.no_grad():
            logprobs = {
                version: model(torch.tensor([[*prompt, *completion.token_ids]])).logits[0].log_softmax(-1)
                for version, model in models.items()
            }
        expected = [
            logprobs[version][len(prompt) - 1 + place, token].item()
            for place, (token, version) in enumerate(
                zip(completion.token_ids, completion.versions, strict=True)
            )
        ]
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)


def test_an_engine_that_fails_says_so_to_all_that_wait_and_to_those_that_come(
    engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(TransformersEngine, "_advance", fails)
    for _ in range(2):
        with pytest.raises(EngineFailed, match="out of memory"):
            run(engine, PROMPTS)


def test_loading_again_takes_the_new_weights(
    engine: TransformersEngine, model_folder: Path, tmp_path: Path
) -> None:
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=32, context=32), 8, tmp_path)
    fresh = TransformersEngine("cpu")
    load(fresh, tmp_path, version=5)
    before = run(engine, PROMPTS, temperature=0.0)
    load(engine, tmp_path, version=5)
    assert run(engine, PROMPTS, temperature=0.0) == run(fresh, PROMPTS, temperature=0.0) != before


def test_a_folder_that_is_pruned_while_it_is_loaded_leaves_an_engine_that_takes_the_next(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pruned(path: Path) -> None:
        raise ConfigError(f"{path}: holds no tokenizer")

    engine = TransformersEngine("cpu")
    with monkeypatch.context() as patch:
        patch.setattr("trinity_db.explorer.engines.transformers_engine.load_tokenizer", pruned)
        with pytest.raises(ConfigError, match="holds no tokenizer"):
            load(engine, model_folder, version=1)
    load(engine, model_folder, version=2)
    assert len(run(engine, PROMPTS)) == len(PROMPTS)


def test_a_model_that_is_saved_by_other_names_takes_the_weights_of_each_version(
    model_folder: Path, tmp_path: Path
) -> None:
    import transformers

    size = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    text = size | {"vocab_size": 16, "num_hidden_layers": 1, "num_key_value_heads": 1, "head_dim": 8}
    vision = size | {"num_hidden_layers": 1, "image_size": 28, "patch_size": 14}
    config = transformers.Gemma3Config(
        text_config=text | {"max_position_embeddings": 24}, vision_config=vision, mm_tokens_per_image=4
    )
    engine = TransformersEngine("cpu")
    for version in range(2):
        folder = tmp_path / f"version-{version}"
        torch.manual_seed(version)
        transformers.Gemma3ForConditionalGeneration(config).save_pretrained(folder)
        load_tokenizer(model_folder).save_pretrained(folder)
        load(engine, folder, version)
        assert engine.context == 24
        (completion,) = run(engine, [[1, 2, 3]], max_new_tokens=4)
        with torch.no_grad():
            logits = load_model(folder, "cpu")(torch.tensor([[1, 2, 3]])).logits[0, -1]
        first = torch.log_softmax(logits, dim=-1)[completion.token_ids[0]].item()
        assert completion.logprobs[0] == pytest.approx(first, abs=1e-4)


HYBRID = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 16, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Gemma3TextConfig", {"sliding_window": 4}),
        (
            "Qwen3NextConfig",
            {
                "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
                "linear_value_head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
                "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
            },
        ),
        ("Lfm2Config", {"layer_types": ["conv", "full_attention"] * 2}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_known", [True, False])
def test_rows_of_every_kind_of_cache_come_and_go_and_change_nothing_of_one_another(
    model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    options: dict[str, Any],
    is_known: bool,
) -> None:
    import transformers

    if not is_known:
        monkeypatch.setattr(kv_cache, "is_known", lambda cache: False)
    torch.manual_seed(0)
    config = getattr(transformers, name)(**HYBRID, **options)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    load_tokenizer(model_folder).save_pretrained(tmp_path)
    engine = TransformersEngine("cpu", max_tokens=200)
    load(engine, tmp_path, 1)
    model = load_model(tmp_path, "cpu")
    requests = [Request(prompt, 2 + 5 * (place % 4), 1.0, place) for place, prompt in enumerate(PROMPTS * 4)]
    for request, completion in zip(requests, sample_all(engine, requests), strict=True):
        tokens = [*request.prompt_ids, *completion.token_ids]
        with torch.no_grad():
            logprobs = model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        first = len(request.prompt_ids) - 1
        expected = [logprobs[first + place, token].item() for place, token in enumerate(completion.token_ids)]
        assert completion.logprobs == pytest.approx(expected, abs=1e-3)
    engine.close()
