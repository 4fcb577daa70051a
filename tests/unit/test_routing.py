"""A trainer goes through the experts that an engine chose, and says how often it would have chosen others."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from tests.others.families.checks import plainly
from tests.others.families.tiny import save
from tests.support.recipes import recipe
from tests.support.waiting import until
from trinity_db.arrays.codec import Payload
from trinity_db.config.shared import ModelConfig, ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.engines.engine import Completion, Request, sample_all
from trinity_db.explorer.engines.transformers_engine import TransformersEngine
from trinity_db.models import check_source, load_model
from trinity_db.models.forward import Forward
from trinity_db.models.layers import recompute
from trinity_db.models.routing import routers_of
from trinity_db.trainer.config import TrainerConfig
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner

EXPERTS, CHOSEN, LAYERS = 4, 2, 4  # of the tiny models
METRIC = "sampling/routing_differs"


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture whose rows are padded."""
    folder = tmp_path_factory.mktemp("gpt_oss")
    save("gpt_oss", folder)
    return folder


def rows(*lengths: int, known: Callable[[int], int] = lambda length: length - 1) -> list[Payload]:
    """Sampled rows, whose experts are drawn by lot.

    Args:
        known: of how many tokens the experts are recorded.
    """
    rng = np.random.default_rng(0)
    made = []
    for length in lengths:
        mask = np.arange(length) >= length // 2
        trained = int(mask.sum())
        lots = rng.random((known(length), LAYERS, EXPERTS)).argsort(-1)[..., :CHOSEN].astype(np.uint8)
        tokens = rng.integers(3, 61, length).astype(np.int32)
        logprobs, versions = np.full(trained, -4, np.float32), np.zeros(trained, np.int32)
        made.append(Payload(tokens, mask, logprobs, versions, routing=lots if len(lots) else None))
    return made


class ByHand(torch.nn.Module):
    """The router of Qwen3-MoE, written anew: softmax over all experts, those of a list, made to sum to 1."""

    def __init__(self, router: Any, chosen: NDArray[Any] | None, length: int) -> None:
        super().__init__()
        self.weight = router.weight
        self.chosen = chosen
        self.length = length
        self.normal = router.norm_topk_prob

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = hidden.reshape(-1, hidden.shape[-1])
        logits = hidden @ self.weight.T
        likely = logits.exp() / logits.exp().sum(-1, keepdim=True)
        places = likely.argsort(-1, descending=True)[:, :CHOSEN]
        if self.chosen is not None:
            places = places.clone()
            places[: len(self.chosen)] = torch.from_numpy(self.chosen.astype(np.int64))
        weights = torch.stack([likely[row, places[row]] for row in range(self.length)])
        if self.normal:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights, places


def load_in(dtype: torch.dtype, folder: Path) -> Any:
    model = load_model(folder, "cpu").to(dtype)
    if dtype == torch.float64:
        model.config._experts_implementation = "eager"  # torch's grouped products know no float64
    return model


def by_hand(folder: Path, payloads: list[Payload], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Log-probabilities and gradient with the recorded experts, by a plain model and one row at a time."""
    model = load_in(dtype, folder)
    routers = [layer.mlp.gate for layer in model.model.layers]
    found = []
    for row in payloads:
        for number, (layer, router) in enumerate(zip(model.model.layers, routers, strict=True)):
            chosen = None if row.routing is None else row.routing[:, number]
            layer.mlp.gate = ByHand(router, chosen, row.num_tokens)
        found.append(_scored(model, row))
    for layer, router in zip(model.model.layers, routers, strict=True):
        layer.mlp.gate = router
    logprobs = torch.cat(found)
    return logprobs.detach(), gradient(model, logprobs)


def _scored(model: Any, row: Payload) -> Tensor:
    tokens = torch.from_numpy(row.token_ids).long()
    log_p = model(input_ids=tokens[None], use_cache=False).logits[0].log_softmax(-1)
    places = torch.from_numpy(np.flatnonzero(row.action_mask[1:]))
    found: Tensor = log_p[places].gather(1, tokens[places + 1][:, None])[:, 0]
    return found


def gradient(model: Any, logprobs: Tensor) -> Tensor:
    model.zero_grad()
    torch.autograd.backward((torch.linspace(-1, 2, len(logprobs), dtype=logprobs.dtype) * logprobs).sum())
    return torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])


def forward_of(folder: Path, dtype: torch.dtype = torch.float32) -> Forward:
    model = load_in(dtype, folder)
    forward = Forward(model, TrainerConfig())
    forward.routers = routers_of(model)
    assert forward.routers is not None
    return forward


def learner(folder: Path, algorithm: str = "grpo", **settings: Any) -> Learner:
    config = {"learning_rate": 1e-3, "max_grad_norm": 1e9}
    asked = TrainerConfig.model_validate(config | settings)
    return Learner(asked, recipe(algorithm), folder, total_steps=10, device="cpu")


def batch(payloads: list[Payload]) -> Batch:
    number = len(payloads)
    columns = {
        "advantages": np.linspace(-1, 1, number),
        "rewards": np.linspace(0, 1, number),
        "groups": np.zeros(number, np.int64),
        "staleness": np.zeros(number, np.int64),
    }
    return Batch(payloads, columns)


@pytest.mark.parametrize(
    ("known", "again"), [(lambda length: length - 1, False), (lambda length: length % 5, True)]
)
def test_log_probabilities_and_gradients_are_those_of_a_plain_model_with_these_experts(
    known: Callable[[int], int], again: bool, packed: Path
) -> None:
    payloads = [*rows(5, 17, 9, known=known), *rows(12, known=lambda length: 0)]
    expected, expected_gradient = by_hand(packed, payloads, torch.float64)
    forward = forward_of(packed, torch.float64)
    if again:
        recompute(forward._model)
    scored = forward(payloads)
    found = scored.logprobs[scored.mask]
    # transformers has the softmax of this router in float32, whatever the weights have.
    torch.testing.assert_close(found.detach(), expected, atol=2e-6, rtol=0)
    torch.testing.assert_close(gradient(forward._model, found), expected_gradient, atol=2e-5, rtol=1e-5)
    own = forward([replace(one, routing=None) for one in payloads]).logprobs[scored.mask]
    assert (own - expected).abs().max() > 0.1


def test_routers_of_other_experts_have_a_gradient_too(packed: Path) -> None:
    forward, payloads = forward_of(packed), rows(30)
    scored = forward(payloads)
    gradient(forward._model, scored.logprobs[scored.mask])
    for layer in forward._model.model.layers:
        assert layer.mlp.gate.weight.grad.abs().max() > 1e-4


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_rows_beside_others_have_the_experts_that_each_has_alone(
    layout: str, request: pytest.FixtureRequest
) -> None:
    forward = forward_of(request.getfixturevalue(layout))
    assert forward.layout == layout
    payloads = [*rows(5, 17, 9), *rows(12, known=lambda length: 0)]
    together = forward(payloads)
    alone = [forward([one]) for one in payloads]
    torch.testing.assert_close(
        together.logprobs[together.mask],
        torch.cat([one.logprobs[one.mask] for one in alone]),
        atol=1e-5,
        rtol=0,
    )
    assert together.differing is not None
    assert int(together.differing) == sum(int(one.differing) for one in alone if one.differing is not None)


def test_what_differs_is_counted_by_sets_of_experts(packed: Path) -> None:
    forward = forward_of(packed)
    routers = forward.routers
    assert routers is not None
    [row] = rows(20)
    with routers.noting() as notes, torch.no_grad():
        forward._model(input_ids=torch.from_numpy(row.token_ids).long()[None], use_cache=False)
    own = torch.stack(notes, dim=1)[:-1].numpy().astype(np.uint8)
    assert own.shape == (19, LAYERS, CHOSEN)
    same = replace(row, routing=own[..., ::-1].copy())
    assert int(forward([same]).differing or 0) == 0
    own[7, 2] = next(pair for pair in ([0, 1], [2, 3]) if set(pair) != set(own[7, 2]))
    forward.replays = False
    assert int(forward([replace(row, routing=own)]).differing or 0) == 1
    torch.testing.assert_close(forward([replace(row, routing=own)]).logprobs, forward([same]).logprobs)


@pytest.mark.parametrize(
    ("layout", "settings"),
    [("packed", {"gradient_checkpointing": True}), ("padded", {"micro_batch_size": 2})],
)
def test_a_step_follows_the_recorded_experts(
    layout: str, settings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    folder, payloads = request.getfixturevalue(layout), [*rows(5, 17, 9), *rows(12, known=lambda length: 0)]
    one = learner(folder, **settings)
    replayed = one.step(batch(payloads))
    weights = gradient_of(one)
    other = learner(folder, **settings, replay_routing=False)
    compared = other.step(batch(payloads))
    plain = learner(folder, **settings)
    without = plain.step(batch([replace(row, routing=None) for row in payloads]))
    assert METRIC not in without
    assert 0.2 < replayed[METRIC] <= 1
    assert {name: value for name, value in compared.items() if name != METRIC} == without
    assert 0.2 < compared[METRIC] <= 1
    torch.testing.assert_close(gradient_of(other), gradient_of(plain), atol=0, rtol=0)
    assert (weights - gradient_of(plain)).abs().max() > 1e-4
    whole = learner(folder)
    whole.step(batch(payloads))
    torch.testing.assert_close(weights, gradient_of(whole), atol=1e-5, rtol=1e-4)


def gradient_of(one: Learner) -> Tensor:
    return torch.cat([each.grad.flatten() for each in one.policy.parameters() if each.grad is not None])


def test_an_adapter_follows_them_and_its_reference_does_not(packed: Path) -> None:
    one = learner(packed, lora={"targets": "all-linear", "rank": 2})
    payloads = rows(5, 17)
    one.step(batch(payloads))
    bare = [replace(row, routing=None) for row in payloads]
    assert (one.policy.logprobs(payloads) - one.policy.logprobs(bare)).abs().max() > 0.05
    found = one.policy.reference_logprobs(payloads)
    mask = one.policy.forward(payloads).mask
    with torch.no_grad():
        expected = plainly(load_model(packed, "cpu"), payloads)
    torch.testing.assert_close(found[mask], expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_what_the_engine_records_is_what_the_model_chooses(
    layout: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(layout)
    completions, requests = sampled(folder)
    forward = forward_of(folder)
    payloads = [payload_of(one, request) for one, request in zip(completions, requests, strict=True)]
    assert int(forward(payloads).differing or 0) == 0
    own = forward([replace(one, routing=None) for one in payloads])
    torch.testing.assert_close(forward(payloads).logprobs, own.logprobs, atol=1e-5, rtol=0)
    for one, payload in zip(completions, payloads, strict=True):
        torch.testing.assert_close(
            forward([payload]).logprobs[0], torch.tensor(one.logprobs), atol=1e-4, rtol=0
        )


def sampled(folder: Path) -> tuple[list[Completion], list[Request]]:
    """Some of the rows end while others go on, and a later version has the same weights."""
    requests = [
        Request([5, 9, 11, 7][:length], limit, seed=length) for length, limit in ((2, 4), (4, 30), (3, 9))
    ]
    engine = TransformersEngine(device="cpu", record_routing=True)
    asyncio.run(engine.load(folder, 0))
    try:
        return sample_all(engine, requests), requests
    finally:
        engine.close()


def payload_of(one: Completion, request: Request) -> Payload:
    tokens = np.array([*request.prompt_ids, *one.token_ids], np.int32)
    assert one.routing is not None
    assert len(one.routing) == len(tokens) - 1
    return Payload(
        tokens,
        np.arange(len(tokens)) >= len(request.prompt_ids),
        np.array(one.logprobs, np.float32),
        np.array(one.versions, np.int32),
        routing=one.routing,
    )


def test_weights_that_come_within_a_response_leave_the_experts_of_the_tokens_before(
    packed: Path, tmp_path: Path
) -> None:
    save("qwen3_moe", tmp_path)
    other = load_model(tmp_path, "cpu")
    with torch.no_grad():
        for layer in other.model.layers:
            layer.mlp.gate.weight.neg_()
    other.save_pretrained(tmp_path)
    engine = TransformersEngine(device="cpu", record_routing=True)

    async def story() -> Completion:
        await engine.load(packed, 0)
        task = asyncio.create_task(engine.generate(Request([5, 9, 11], 60, seed=1)))
        await until(lambda: engine._batch and len(engine._batch.rows[0].token_ids) >= 5, "five tokens")
        await engine.load(tmp_path, 1)
        return await task

    found = asyncio.run(story())
    engine.close()
    assert sorted(set(found.versions)) == [0, 1]
    row = payload_of(found, Request([5, 9, 11], 60))
    assert row.routing is not None
    first = 3 + found.versions.index(1) - 1  # what sampled the first token of version 1
    for version, folder in enumerate((packed, tmp_path)):
        forward = forward_of(folder)
        routers = forward.routers
        assert routers is not None
        with routers.noting() as notes, torch.no_grad():
            forward._model(input_ids=torch.from_numpy(row.token_ids).long()[None], use_cache=False)
        own = torch.stack(notes, dim=1)[:-1].numpy()
        part = slice(0, first) if version == 0 else slice(first, None)
        np.testing.assert_array_equal(np.sort(own[part]), np.sort(row.routing[part]))


def test_what_the_loss_of_routers_chooses_is_no_router(tmp_path: Path) -> None:
    save("mixtral", tmp_path)
    model = load_model(tmp_path, "cpu")
    model.config.output_router_logits = True
    routers = routers_of(model)
    assert routers is not None
    assert len(routers) == LAYERS


def test_layers_without_experts_may_be_recorded_too(tmp_path: Path) -> None:
    save("deepseek_v3", tmp_path)
    forward = forward_of(tmp_path)
    routers = forward.routers
    assert routers is not None
    assert len(routers) == LAYERS - 1
    [row] = rows(9)
    assert row.routing is not None
    found = forward([row]).logprobs
    shorter = forward([replace(row, routing=row.routing[:, 1:].copy())]).logprobs
    torch.testing.assert_close(found, shorter, atol=0, rtol=0)


def test_a_model_without_experts_is_refused_before_the_run_has_a_name(packed: Path, tmp_path: Path) -> None:
    save("qwen2", tmp_path)
    check_source(ModelConfig(path=packed), has_experts=True)
    with pytest.raises(
        ConfigError, match=r"record_routing: .*: qwen2 is not a mixture of experts; leave it out"
    ):
        check_source(ModelConfig(path=tmp_path), has_experts=True)
    with pytest.raises(ConfigError, match=r"record_routing: a model from scratch has no experts; leave it"):
        check_source(ModelConfig(scratch=ScratchConfig()), has_experts=True)


def test_models_without_such_routers_are_refused(tmp_path: Path) -> None:
    save("phimoe", tmp_path)
    with pytest.raises(ConfigError, match=r"^trainer\.replay_routing: PhimoeForCausalLM has no routers"):
        learner(tmp_path).step(batch(rows(9, 5)))
    metrics = learner(tmp_path, replay_routing=False).step(batch(rows(9, 5)))
    assert METRIC not in metrics
    engine = TransformersEngine(device="cpu", record_routing=True)
    with pytest.raises(ConfigError, match=r"^explorer\.record_routing: PhimoeForCausalLM has no routers"):
        asyncio.run(engine.load(tmp_path, 0))
    engine.close()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda routing: routing[:, :3],
        lambda routing: routing[..., :1],
        lambda routing: np.where(routing == 1, 9, routing).astype(np.uint8),
    ],
)
def test_experts_of_another_model_are_refused(wrong: Callable[[Any], Any], packed: Path) -> None:
    payloads = [replace(row, routing=wrong(row.routing)) for row in rows(17, 5)]
    with pytest.raises(ConfigError, match=r"chooses 2 of 4 in 4 layers: the engine records them in"):
        learner(packed).step(batch(payloads))
    assert METRIC not in learner(packed, replay_routing=False).step(batch(payloads))


def test_compiled_layers_are_refused(packed: Path) -> None:
    one = learner(packed)
    one.policy.routing._compiles = True
    with pytest.raises(ConfigError, match=r"remove trainer\.compile, or set trainer\.replay_routing: false"):
        one.step(batch(rows(9, 5)))
