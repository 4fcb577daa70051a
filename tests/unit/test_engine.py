"""The decoding loop agrees with a plain forward pass and with transformers' own generation."""

from pathlib import Path

import pytest
import torch

from trinity_db.config import ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.engine import Completion, Request
from trinity_db.explorer.transformers_engine import TransformersEngine
from trinity_db.models import build_scratch, load_model, load_tokenizer
from trinity_db.prompts import PromptTooLong

PROMPTS = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 1, 2], [3, 3], [2, 4, 6, 8]]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=32, context=32), 3, folder)
    return folder


@pytest.fixture
def engine(model_folder: Path) -> TransformersEngine:
    engine = TransformersEngine("cpu")
    engine.load(model_folder, version=4)
    return engine


def run(
    engine: TransformersEngine,
    prompts: list[list[int]],
    temperature: float = 1.0,
    seed: int = 0,
    max_new_tokens: int = 12,
) -> list[Completion]:
    """Completions in the order of the prompts."""
    requests = [Request(prompt, max_new_tokens) for prompt in prompts]
    done = [c for ended in engine.generate(requests, temperature=temperature, seed=seed) for c in ended]
    assert sorted(completion.index for completion in done) == list(range(len(prompts)))
    return sorted(done, key=lambda completion: completion.index)


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
    likeliest = run(engine, PROMPTS, temperature=0.0)
    requests = [Request(prompt, 12, greedy=place % 2 == 0) for place, prompt in enumerate(PROMPTS * 4)]
    ended = [one for some in engine.generate(requests, temperature=2.0, seed=0) for one in some]
    differing = 0
    for completion in ended:
        expected = likeliest[completion.index % len(PROMPTS)]
        if requests[completion.index].greedy:
            assert completion.token_ids == expected.token_ids
            assert completion.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
        else:
            differing += completion.token_ids != expected.token_ids
    assert differing > len(requests) / 4


def test_the_seed_decides_the_sample(engine: TransformersEngine) -> None:
    assert run(engine, PROMPTS, seed=5) == run(engine, PROMPTS, seed=5)
    assert run(engine, PROMPTS, seed=5) != run(engine, PROMPTS, seed=6)


def test_a_row_ends_at_its_end_token_or_its_limit_and_is_given_out_at_once_with_those_that_end_with_it(
    engine: TransformersEngine,
) -> None:
    limits = [3, 40, 1, 6]
    requests = [Request([1, 2], limit) for limit in limits]
    end = engine.tokenizer.eos_token_id
    seeds = range(30)
    reasons = set()
    for seed in seeds:
        together = list(engine.generate(requests, temperature=1.0, seed=seed))
        lengths = [{len(completion.token_ids) for completion in ended} for ended in together]
        assert {len(lengths_of_one) for lengths_of_one in lengths} == {1}
        ends = [min(lengths_of_one) for lengths_of_one in lengths]
        assert ends == sorted(set(ends))
        for completion in (completion for ended in together for completion in ended):
            stopped = completion.token_ids[-1] == end
            assert end not in completion.token_ids[:-1]
            assert completion.finish_reason == ("stop" if stopped else "length")
            assert stopped or len(completion.token_ids) == min(limits[completion.index], 30)
            reasons.add((completion.index, completion.finish_reason))
    assert {(1, "stop"), (3, "stop"), (3, "length"), (2, "length")} <= reasons


def test_a_prompt_that_does_not_fit_is_refused_before_anything_runs(engine: TransformersEngine) -> None:
    assert engine.fits([1] * 31)
    assert not engine.fits([1] * 32)
    assert not engine.fits([])
    with pytest.raises(PromptTooLong, match="32 tokens does not fit"):
        engine.generate([Request([1], 1), Request([1] * 32, 1)], temperature=1.0, seed=0)


def test_generation_stops_between_two_tokens_when_asked_to(engine: TransformersEngine) -> None:
    answers = iter([False, False, True])
    requests = [Request([1], 1), Request([1], 2), Request([1], 20), Request([2], 20)]
    done = list(engine.generate(requests, temperature=1.0, seed=1, should_stop=lambda: next(answers)))
    assert [completion.index for ended in done for completion in ended] == [0, 1]


def test_tokens_after_a_weight_update_carry_the_new_version(
    engine: TransformersEngine, model_folder: Path
) -> None:
    completions = engine.generate([Request([1], 1), Request([1], 3)], temperature=0.0, seed=0)
    [first] = next(completions)
    engine.load(model_folder, version=5)
    [[second]] = completions
    assert (first.versions, second.versions) == ([4], [4, 5, 5])


def test_loading_again_takes_the_new_weights(
    engine: TransformersEngine, model_folder: Path, tmp_path: Path
) -> None:
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=32, context=32), 8, tmp_path)
    fresh = TransformersEngine("cpu")
    fresh.load(tmp_path, version=5)
    before = run(engine, PROMPTS, temperature=0.0)
    engine.load(tmp_path, version=5)
    assert run(engine, PROMPTS, temperature=0.0) == run(fresh, PROMPTS, temperature=0.0) != before


def test_a_folder_that_is_pruned_while_it_is_loaded_leaves_an_engine_that_takes_the_next(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pruned(path: Path) -> None:
        raise ConfigError(f"{path}: holds no tokenizer")

    engine = TransformersEngine("cpu")
    with monkeypatch.context() as patch:
        patch.setattr("trinity_db.explorer.transformers_engine.load_tokenizer", pruned)
        with pytest.raises(ConfigError, match="holds no tokenizer"):
            engine.load(model_folder, version=1)
    engine.load(model_folder, version=2)
    assert len(run(engine, PROMPTS)) == len(PROMPTS)
    assert engine.fits([1, 2])


def test_a_completion_becomes_a_payload_whose_response_is_trained(engine: TransformersEngine) -> None:
    (completion,) = run(engine, [[1, 2]], max_new_tokens=3)
    payload = completion.payload([1, 2])
    assert payload.token_ids.tolist() == [1, 2, *completion.token_ids]
    assert payload.action_mask.tolist() == [False, False] + [True] * len(completion.token_ids)
    assert payload.versions is not None
    assert payload.versions.tolist() == completion.versions
    assert payload.logprobs is not None
    assert payload.logprobs.tolist() == pytest.approx(completion.logprobs)


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
        engine.load(folder, version)
        assert engine.context == 24
        (completion,) = run(engine, [[1, 2, 3]], max_new_tokens=4)
        with torch.no_grad():
            logits = load_model(folder, "cpu")(torch.tensor([[1, 2, 3]])).logits[0, -1]
        first = torch.log_softmax(logits, dim=-1)[completion.token_ids[0]].item()
        assert completion.logprobs[0] == pytest.approx(first, abs=1e-4)
