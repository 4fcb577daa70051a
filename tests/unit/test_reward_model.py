"""The reward model's step against plain transformers, one row at a time; and folders that hold none."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForSequenceClassification,
)

from tests.support.steps import load, verdicts
from trinity_db.config.shared import ForwardConfig, ModelConfig, ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.models import build_scratch
from trinity_db.models.reward_model import RewardModel
from trinity_db.models.scratch import scratch_tokenizer
from trinity_db.processors.lists.step import Context, Step
from trinity_db.schema.states import Outcome

TEMPLATE = (
    "{% for tool in tools or [] %}<{{ tool.name }}>{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}<|endoftext|>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MODEL = ModelConfig.model_validate({"path": "none"})


def build(folder: Path, chat: bool = False, pad: bool = True, seed: int = 3, **changes: Any) -> Path:
    """A small reward model with random weights over bytes."""
    tokenizer = scratch_tokenizer(None, 96)
    if chat:
        tokenizer.chat_template = TEMPLATE
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        intermediate_size=64,
        max_position_embeddings=96,
        pad_token_id=tokenizer.pad_token_id if pad else None,
        **{**sizes, "num_labels": 1, "initializer_range": 0.3, **changes},
    )
    torch.manual_seed(seed)
    Qwen2ForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def prepared(folder: Path, model: ModelConfig = MODEL, **forward: Any) -> Step:
    [step] = load("score", {"name": "reward_model", "path": str(folder), "forward": forward})
    step.check(MODEL)
    return step.prepared(Context(None, model, 1.0))  # type: ignore[arg-type]


def row(
    response: str,
    prompt: str = "why?",
    messages: Any = None,
    finish_reason: str = "stop",
    tools: Any = None,
) -> dict[str, Any]:
    task = {"messages": messages, "tools": tools} if messages else {"prompt": prompt}
    said = {"response": response, "finish_reason": finish_reason}
    return {"prompt": prompt, "messages": messages, "task": task, **said}


@pytest.mark.parametrize("pad", [True, False])
def test_each_row_gets_what_plain_transformers_says_of_it_alone(tmp_path: Path, pad: bool) -> None:
    folder = build(tmp_path / "model", chat=True, pad=pad)
    talk = [{"role": "user", "content": "hi"}]
    rows = [row("x" * n) for n in (1, 30, 7, 3, 30)]
    rows += [row("fine", messages=talk), row("cut", finish_reason="length"), row("z", messages=talk)]
    rows += [row("add(1)", messages=talk, tools=[{"name": "add"}])]
    said = verdicts("score", [prepared(folder, micro_batch_size=3, micro_batch_tokens=64)], *rows)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    end = tokenizer.eos_token
    for verdict, one in zip(sorted(said, key=lambda one: one.id), rows, strict=True):
        asked = one["messages"] or [{"role": "user", "content": one["prompt"]}]
        turns = [*asked, {"role": "assistant", "content": one["response"]}]
        text = tokenizer.apply_chat_template(turns, tools=one["task"].get("tools"), tokenize=False)
        if one["finish_reason"] == "length":
            text = text.removesuffix(end)
        with torch.no_grad():
            alone = model(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits.item()
        [event] = verdict.events
        assert event.value == pytest.approx(alone, abs=1e-5)
        assert event.detail is not None
        assert len(event.detail["reward_model"]) == 64
    values = [verdict.events[0].value for verdict in said]
    assert max(values) - min(values) > 0.1, "rows differ"


def test_a_prompt_in_a_template_of_the_configuration_is_read_as_the_policy_read_it(tmp_path: Path) -> None:
    folder = build(tmp_path / "model", chat=True)
    plain = ModelConfig.model_validate({"path": "none", "prompt_template": "Q: {prompt}"})
    [verdict] = verdicts("score", [prepared(folder, plain)], row("fine", prompt="Q: why?"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    text = "Q: why?fine" + tokenizer.eos_token
    with torch.no_grad():
        alone = model(**tokenizer(text, return_tensors="pt", add_special_tokens=False)).logits.item()
    assert verdict.events[0].value == pytest.approx(alone, abs=1e-5)


def test_bfloat16_says_nearly_the_same(tmp_path: Path) -> None:
    folder = build(tmp_path / "model", initializer_range=0.1)
    rows = [[1, 2, 3], [4, 5]]
    exact, rounded = (
        dict(RewardModel(folder, ForwardConfig(dtype=dtype), device="cpu").rewards(rows))
        for dtype in ("float32", "bfloat16")
    )
    assert exact != rounded
    assert [*rounded.values()] == pytest.approx([*exact.values()], abs=0.05)


def test_a_row_that_it_cannot_take_has_no_reward(tmp_path: Path) -> None:
    folder = build(tmp_path / "model")
    step = prepared(folder)
    long, good = sorted(verdicts("score", [step], row("x" * 100), row("y")), key=lambda one: one.id)
    assert (long.outcome, long.reason) == (Outcome.DROPPED, "too_long_for_reward_model")
    assert long.detail == {"tokens": 105, "context": 96}
    assert good.outcome == Outcome.PASSED
    with torch.no_grad():
        model = step.call._model._model  # type: ignore[union-attr]
        model.score.weight.fill_(float("nan"))
    [bad] = verdicts("score", [step], row("y"))
    assert bad.outcome == Outcome.FAILED
    assert "not finite" in str(bad.error)


def test_the_record_says_by_which_model_it_judges(tmp_path: Path) -> None:
    folder = build(tmp_path / "model")
    [step] = load("score", {"name": "reward_model", "path": str(folder)})
    context: Any = Context(None, MODEL, 1.0)  # type: ignore[arg-type]
    first = prepared(folder)
    assert first.record()["digest"] == prepared(folder).record()["digest"]
    build(folder, seed=4)
    assert step.identified(context).record() == step.prepared(context).record()
    assert step.identified(context).record()["digest"] != first.record()["digest"]
    shutil.rmtree(folder)
    with pytest.raises(ConfigError, match="model is missing; restore it, or start again"):
        step.identified(context)


def test_what_is_no_reward_model_is_said_before_the_run(tmp_path: Path) -> None:
    build_scratch(ScratchConfig(hidden_size=16, layers=1, heads=2), 0, tmp_path / "policy")
    build(tmp_path / "labels", num_labels=3)
    build(tmp_path / "headless")
    from safetensors.torch import load_file, save_file

    file = tmp_path / "headless" / "model.safetensors"
    weights = load_file(file)
    del weights["score.weight"]
    save_file(weights, file, {"format": "pt"})
    for folder, said in (
        ("none", "no such model folder"),
        ("policy", "is not a reward model, but Qwen2ForCausalLM"),
        ("labels", "has 3 labels; a reward model has one"),
        ("headless", "its files lack the weight score.weight"),
    ):
        with pytest.raises(ConfigError, match=said):
            prepared(tmp_path / folder)
    for options in ({}, {"path": "a", "run": "b"}):
        [step] = load("score", {"name": "reward_model", **options})
        with pytest.raises(ConfigError, match="give either path, a folder, or run"):
            step.check(MODEL)
