"""Embeddings of a local model against plain transformers, one text at a time; and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from tests.support.steps import load
from tests.unit.test_reward_model import MODEL, build
from trinity_db.errors import ConfigError
from trinity_db.models.embedding import EmbeddingModel

TEXTS = ["four", "the answer is forty two", "", "x" * 200, "and some more words, for a second row of padding"]


def pooled(folder: Path, text: str, pooling: str) -> Any:
    """As sentence-transformers does, without padding."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    ids = tokenizer(text or " ", return_tensors="pt").input_ids[:, :96]
    with torch.no_grad():
        states = model(ids).last_hidden_state[0]
    vector = {"mean_tokens": states.mean(dim=0), "cls_token": states[0], "lasttoken": states[-1]}[pooling]
    return (vector / vector.norm()).numpy()


@pytest.mark.parametrize(
    ("pooling", "said"),
    [
        ("mean_tokens", None),
        ("cls_token", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}),
        ("lasttoken", {"pooling_mode": "lasttoken", "include_prompt": True}),
        ("mean_tokens", {"pooling_mode": "mean"}),
    ],
)
def test_vectors_are_those_of_plain_transformers(
    tmp_path: Path, pooling: str, said: dict[str, Any] | None
) -> None:
    folder = build(tmp_path / "model")
    if said is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(said))
    found = EmbeddingModel(folder).embed(TEXTS)
    expected = np.stack([pooled(folder, text, pooling) for text in TEXTS])
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_pooling_that_is_not_known_is_refused_before_the_run_is_created(tmp_path: Path) -> None:
    folder = build(tmp_path / "model")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_max_tokens": true}')
    [step] = load("clean", {"name": "embed", "path": str(folder)})
    with pytest.raises(
        ConfigError, match=r"config.json: pools by max_tokens; supported are mean_tokens, cls_token"
    ):
        step.check(MODEL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"embed: give either path, a folder, or url, an endpoint"),
        ({"path": "x", "url": "http://h/v1", "model": "m"}, r"embed: give either path, a folder, or url"),
        ({"url": "http://h/v1"}, r"embed: url and model belong together"),
        ({"url": "http://h/v1", "model": "m", "key_env": "NO_SUCH_KEY"}, r"NO_SUCH_KEY is not set"),
        ({"path": "/nowhere"}, r"/nowhere"),
    ],
)
def test_mistakes_are_found_before_the_run_is_created(options: dict[str, Any], message: str) -> None:
    [step] = load("clean", {"name": "embed", **options})
    with pytest.raises(ConfigError, match=message):
        step.check(MODEL)
