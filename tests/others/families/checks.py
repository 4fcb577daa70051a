"""What a family's model has to do, each held against plain transformers, one row at a time."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.models.falcon.modeling_falcon import FalconLinear
from transformers.pytorch_utils import Conv1D

from tests.support.recipes import recipe
from tests.support.saving import save
from trinity_db.arrays.codec import Payload
from trinity_db.config.base import validate
from trinity_db.errors import ConfigError
from trinity_db.explorer.engines import transformers_engine
from trinity_db.explorer.engines.engine import Completion, Request, sample_all
from trinity_db.explorer.engines.transformers_engine import TransformersEngine
from trinity_db.models import load_model, load_tokenizer
from trinity_db.models.forward import Forward, trained_mask
from trinity_db.models.layers import layers_of, recompute
from trinity_db.models.lazy_weights import UnreadModel
from trinity_db.models.router import balance, experts_per_token
from trinity_db.models.routing import routers_of
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

LENGTHS = (5, 17, 9, 40)  # tokens; windows and chunks have 8
PREFIX = 24  # tokens that the last two rows share
PROMPTS = ((3, 4), (12, 20), (20, 6), (7, 25))  # tokens, and how many follow
TOLERANCE = 1e-4  # nats, and share of the largest gradient; rounding gives 3e-5 at most


def rows(context: int) -> list[Payload]:
    """Some of the tokens of each are trained. The last two begin with the same tokens."""
    rng = np.random.default_rng(0)
    made = []
    for number, length in enumerate(min(length, context) for length in LENGTHS):
        mask = rng.random(length) < 0.6
        mask[0], mask[-1] = number == 1, True
        made.append(Payload(rng.integers(3, 61, length).astype(np.int32), mask))
    longest = made[-1].token_ids
    tokens = np.concatenate([longest[:PREFIX], rng.integers(3, 61, len(longest) - PREFIX)]).astype(np.int32)
    return [*made, Payload(tokens, np.arange(len(tokens)) % 3 > 0)]


def plainly(model: Any, payloads: list[Payload]) -> Tensor:
    """Log-probabilities of the trained tokens, by one call of the model for each row."""
    found = []
    for row in payloads:
        tokens = torch.from_numpy(row.token_ids).long()
        log_p = model(input_ids=tokens[None], use_cache=False).logits[0].float().log_softmax(-1)
        places = torch.from_numpy(np.flatnonzero(row.action_mask[1:]))
        found.append(log_p[places].gather(1, tokens[places + 1][:, None])[:, 0])
    return torch.cat(found)


def check_read_in_parts(folder: Path) -> None:
    """A rank that keeps a part reads layer by layer what transformers reads at once."""
    unread = UnreadModel(folder)
    assert not unread.is_whole
    for layer in layers_of(unread.model):
        unread.read(layer, "cpu")
    unread.read(unread.model, "cpu")
    found, expected = unread.model.state_dict(), load_model(folder, "cpu").state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def check_forward(folder: Path, context: int) -> str:
    """Log-probabilities and gradients, also with layers that are computed again; returns the layout."""
    model, payloads = load_model(folder, "cpu"), rows(context)
    expected = plainly(model, payloads)
    by_plain = _gradient(model, expected)
    forward = Forward(model, TrainerConfig())
    assert forward._shares == (forward.layout == "packed")
    for again in (False, True):
        if again:
            with suppress(ConfigError):  # some old families cannot, and say so
                recompute(model)
        scored = forward(payloads)
        found = scored.logprobs[scored.mask]
        torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
        atol = TOLERANCE * float(by_plain.abs().max())
        torch.testing.assert_close(_gradient(model, found), by_plain, atol=atol, rtol=0)
    return forward.layout


def check_router_loss(folder: Path, context: int) -> bool:
    """The load of experts is balanced as transformers does it, with gradient; returns whether it is."""
    plain, model, payloads = load_model(folder, "cpu"), load_model(folder, "cpu"), rows(context)
    chosen = experts_per_token(plain)
    if chosen is None:
        return False
    expected = router_loss(plain, payloads)[None]
    load = Forward(model, TrainerConfig())(payloads, routed=chosen).load
    assert load is not None
    found = balance(load[0].detach(), load[1], chosen)[None]
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)
    by_plain = _gradient(plain, expected)
    atol = TOLERANCE * float(by_plain.abs().max())
    torch.testing.assert_close(_gradient(model, found), by_plain, atol=atol, rtol=0)
    return True


def check_replayed(folder: Path, context: int) -> bool:
    """Other experts than the router's own reach the experts of each layer, as hooks there see them; returns
    whether a model of the family can replay them."""
    model, payloads = load_model(folder, "cpu"), rows(context)
    forward = Forward(model, TrainerConfig())
    forward.routers = routers = routers_of(model)
    if routers is None:
        return False
    rng = np.random.default_rng(1)
    shape = (len(routers), routers.experts)
    lots = [rng.random((one.num_tokens - 1, *shape)).argsort(-1)[..., : routers.chosen] for one in payloads]
    routed = [_sampled(one, lot) for one, lot in zip(payloads, lots, strict=True)]
    seen: list[list[Tensor]] = []

    def see(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        given = [*arguments, *named.values()]
        seen.append([one for one in given if isinstance(one, Tensor) and one.dtype == torch.int64])

    experts = [one for one in model.modules() if type(one).__name__.endswith("Experts")]
    hooks = [one.register_forward_pre_hook(see, with_kwargs=True) for one in experts]
    scored = forward(routed)
    for hook in hooks:
        hook.remove()
    assert scored.differing is not None
    assert 0 < int(scored.differing) <= sum(map(len, lots)) * len(routers)
    if len(seen) == len(routers) and all(len(one) == 1 for one in seen):  # else experts are given otherwise
        _check_seen([one[0].flatten(0, -2) for one in seen], lots, forward.layout == "packed")
    for one, row in zip(routed, scored.logprobs, strict=True):
        alone = forward([one]).logprobs[0]
        torch.testing.assert_close(row[: len(alone)], alone, atol=TOLERANCE, rtol=0)
    return True


def _sampled(row: Payload, lot: NDArray[np.int64]) -> Payload:
    nothing = np.zeros(row.num_trained, np.float32)
    return replace(row, logprobs=nothing, versions=nothing.astype(np.int32), routing=lot.astype(np.uint8))


def _check_seen(seen: list[Tensor], lots: list[NDArray[np.int64]], packs: bool) -> None:
    """The experts of a layer got what was drawn by lot, at all tokens of a row but the last."""
    width = max(map(len, lots)) + 1
    start = 0
    for lot in sorted(lots, key=len, reverse=True) if packs else lots:
        for number, layer in enumerate(seen):
            found = layer[start : start + len(lot)]
            np.testing.assert_array_equal(found.numpy(), lot[:, number])
        start += len(lot) + 1 if packs else width


def router_loss(model: Any, payloads: list[Payload]) -> Tensor:
    """The loss that transformers has for routers, by one call with padded rows and their mask."""
    width = max(payload.num_tokens for payload in payloads)
    tokens = np.stack([np.pad(one.token_ids, (0, width - one.num_tokens)) for one in payloads])
    mask = np.arange(width) < np.array([[one.num_tokens] for one in payloads])
    found: Tensor = model(
        input_ids=torch.from_numpy(tokens).long(),
        attention_mask=torch.from_numpy(mask).long(),
        use_cache=False,
        output_router_logits=True,
    ).aux_loss
    return found


def check_trained(
    folder: Path,
    context: int,
    version: Path,
    lora: dict[str, Any] | None = None,
    publish: str | None = None,
) -> None:
    """Two steps change the model, and what is published computes what the learner computes."""
    payloads = rows(context)
    torch.manual_seed(5)
    rate = 1e-2 if lora else 1e-3
    config = validate(TrainerConfig, {"learning_rate": rate, "lora": lora, "publish": publish}, "run.yaml")
    learner = Learner(config, recipe("sft"), folder, total_steps=10, device="cpu")
    for _ in range(2):
        learner.step(Batch(payloads))
    save(version, learner, load_tokenizer(folder))
    mask = torch.from_numpy(trained_mask(payloads))
    found = learner.policy.logprobs(payloads)[mask]
    with torch.no_grad():
        torch.testing.assert_close(
            plainly(load_model(version, "cpu"), payloads), found, atol=TOLERANCE, rtol=0
        )
        before = plainly(load_model(folder, "cpu"), payloads)
    assert (found - before).abs().max() > 5 * TOLERANCE


def attention_layers(folder: Path) -> list[str]:
    """The ends of names of the linear layers that make queries and values."""
    names = [
        name.rpartition(".")[2]
        for name, module in load_model(folder, "cpu").named_modules()
        if type(module) in (torch.nn.Linear, Conv1D, FalconLinear) and name != "lm_head"
    ]
    by_attention = {"q_proj", "v_proj", "qkv_proj", "query_key_value", "Wqkv", "o_proj", "c_attn"}
    return sorted(by_attention.intersection(names)) or sorted(set(names))[:1]


def check_explored(folder: Path, context: int) -> str:
    """What is sampled beside others is what is sampled alone, and scored as plain transformers scores it.

    Returns:
        how rows are decoded, or why they are not.
    """
    rng = np.random.default_rng(3)
    requests = [
        Request(
            rng.integers(3, 61, min(length, context - 3)).tolist(),
            limit,
            temperature=1.0 - place % 2,
            seed=place,
        )
        for place, (length, limit) in enumerate(PROMPTS)
    ]
    engine = TransformersEngine(device="cpu")
    try:
        asyncio.run(engine.load(folder, 0))
    except ConfigError:  # it says that transformers decodes the model otherwise
        return "no"
    together = sample_all(engine, requests)
    alone = [sample_all(engine, [request])[0] for request in requests]
    how = "alone" if engine._is_alone else "together"
    model = load_model(folder, "cpu")
    _check_scores(model, engine, requests)
    engine.close()
    for answers in (together, alone):
        for request, answer in zip(requests, answers, strict=True):
            _check_scored(model, request, answer)
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    return how


def _check_scores(model: Any, engine: TransformersEngine, requests: list[Request]) -> None:
    """Prompts are scored part by part as plain transformers scores them at once."""
    for request in requests:
        tokens = np.array(request.prompt_ids, np.int32)
        with patch.object(transformers_engine, "SCORED", 5):
            found = asyncio.run(engine.score(request.prompt_ids)).logprobs
        with torch.no_grad():
            expected = plainly(model, [Payload(tokens, np.arange(len(tokens)) > 0)])
        torch.testing.assert_close(torch.tensor(found), expected, atol=TOLERANCE, rtol=0)


def _check_scored(model: Any, request: Request, answer: Completion) -> None:
    token_ids = np.array([*request.prompt_ids, *answer.token_ids], np.int32)
    row = Payload(token_ids, np.arange(len(token_ids)) >= len(request.prompt_ids))
    with torch.no_grad():
        expected = plainly(model, [row])
    torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=TOLERANCE, rtol=0)


def _gradient(model: Any, logprobs: Tensor) -> Tensor:
    """Of a sum that weighs each token differently."""
    model.zero_grad()
    torch.autograd.backward((torch.linspace(-1, 2, len(logprobs)) * logprobs).sum())
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
