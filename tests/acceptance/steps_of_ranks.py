"""Whole optimizer steps of every kind, by one process or by several: `torchrun steps_of_ranks.py FOLDER`.

What comes of them is written by the first rank, for a test to hold against what one process comes to. In the
folder lie the models `start` and `moved`, and in `alone/two` a checkpoint of one process.
"""

import gc
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from tests.support import saving
from tests.support.recipes import recipe
from trinity_db.arrays.codec import Payload
from trinity_db.models import load_tokenizer
from trinity_db.models.lazy_weights import UnreadModel
from trinity_db.trainer.config import AlgorithmConfig, TrainerConfig
from trinity_db.trainer.distribution import ranks
from trinity_db.trainer.distribution.ranks import Ranks
from trinity_db.trainer.distribution.sharding import whole_tensors
from trinity_db.trainer.learner.gathered_columns import Batch
from trinity_db.trainer.learner.learner import Learner, NonFiniteLoss
from trinity_db.trainer.learner.micro_batches import Abandoned
from trinity_db.trainer.learner.published_weights import local_part
from trinity_db.trainer.learner.starting_scores import StartingScores
from trinity_db.trainer.learner.visible_updates import VISIBLE

PROXIMAL = {"correction": "truncated_importance_sampling", "kl": {"name": "k3", "coefficient": 0.3}}
ALGORITHMS: dict[str, tuple[AlgorithmConfig, dict[str, Any]]] = {
    "grpo": (recipe("grpo", **PROXIMAL), {}),
    "dpo": (recipe("dpo"), {}),
    "sft": (recipe("sft"), {}),
    "clipped": (recipe("sft"), {"max_grad_norm": 0.01}),
    "kto": (recipe("kto"), {}),
    "ppo": (recipe("ppo"), {}),
    "raft": (recipe("raft"), {}),
    "reinforce_plus_plus": (recipe("reinforce_plus_plus"), {}),
    "mix": (recipe("mix", mu=0.4, **PROXIMAL), {}),
    "recomputed": (recipe("gspo"), {"gradient_checkpointing": True, "micro_batch_size": 3}),
    "updates": (
        recipe("ppo", correction="truncated_importance_sampling"),
        {"updates_per_batch": 2, "minibatches": 2},
    ),
    "sgd": (recipe("ppo"), {"optimizer": {"name": "sgd", "momentum": 0.9}, "value_learning_rate": 1e-3}),
    "lora": (recipe("dpo"), {"lora": {"rank": 2}}),
    "summed often": (recipe("dpo"), {"sum_gradients": "micro_batch"}),
    "synchronised": (recipe("dpo"), {"reference": {"name": "synchronised", "sync_every": 1, "mix": 0.5}}),
}
SIZES = {"even": 8, "uneven": 6, "fewer than ranks": 2}
SAVED = ("ppo", "lora", "synchronised")
"""Those whose checkpoints are more than a model."""


def batch(size: int, seed: int = 0) -> Batch:
    """Rows of random tokens and lengths."""
    rng = np.random.default_rng(seed)
    payloads = []
    for _ in range(size):
        mask = np.arange(int(rng.integers(5, 14))) > 2
        tokens = rng.integers(0, 10, len(mask)).astype(np.int32)
        logprobs = rng.normal(-2.3, 0.3, int(mask.sum())).astype(np.float32)
        payloads.append(Payload(tokens, mask, logprobs, np.zeros(len(logprobs), np.int32)))
    columns = {
        "advantages": rng.normal(size=size),
        "rewards": rng.normal(size=size),
        "groups": np.arange(size) // 2,
        "staleness": np.arange(size) % 3,
        "weight": rng.uniform(0.5, 1.0, size),
        "is_expert": np.arange(size) % 3 == 2,
    }
    return Batch(payloads, columns)


def routed(rows: Batch) -> Batch:
    """The same rows with experts of `build_experts`, drawn by lot. Every third row has none, and each of the
    others for some of its tokens."""
    rng = np.random.default_rng(5)
    payloads = []
    for number, row in enumerate(rows.payloads):
        lots = rng.random((int(rng.integers(2, row.num_tokens)), 2, 4)).argsort(-1)[..., :2].astype(np.uint8)
        payloads.append(row if number % 3 == 0 else replace(row, routing=lots))
    return replace(rows, payloads=payloads)


def build_padded(folder: Path) -> None:
    """A model whose scores are soft-capped, so that its sequences cannot lie end to end."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "hidden_size": 16, "intermediate_size": 24, "head_dim": 8}
    config = transformers.Gemma2Config(
        **sizes, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32
    )
    transformers.Gemma2ForCausalLM(config).save_pretrained(folder)


def build_experts(folder: Path) -> None:
    """A mixture of experts, whose configuration asks for a balanced load."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 12, "hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 32}
    config = transformers.MixtralConfig(
        **sizes,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        output_router_logits=True,
        router_aux_loss_coef=0.5,
    )
    transformers.MixtralForCausalLM(config).save_pretrained(folder)


def learner(of: Ranks, folder: Path, name: str, model: str = "start", **settings: Any) -> Learner:
    algorithm, own = ALGORITHMS[name]
    config = {"learning_rate": 1e-4, "micro_batch_size": 2} | own | settings
    torch.manual_seed(0)
    return Learner(
        TrainerConfig.model_validate(config),
        algorithm,
        folder / model,
        total_steps=10,
        reference=folder / ("start" if {"lora", "reference"} & config.keys() else "moved"),
        device="cpu",
        ranks=of,
    )


def step(one: Learner, rows: Batch) -> dict[str, Any]:
    """What a step comes to."""
    metrics = one.step(rows)
    gradients = [parameter.grad for parameter in one.policy.parameters()]
    return {"metrics": metrics, "gradients": whole_tensors(gradients, one.ranks)}


def save(one: Learner, folder: Path) -> None:
    saving.save_together(folder, one, load_tokenizer(folder.parents[1] / "start"))


def resumed(of: Ranks, folder: Path, model: str, name: str = "dpo", **settings: Any) -> Learner:
    one = learner(of, folder, name, model, **settings)
    saving.resume(folder / model, one)
    return one


def goes_on_to_the_bit(one: Learner, again: Learner) -> bool:
    """Whether two learners are equal on this rank before and after a step, with their optimizers."""
    same = []
    for seed in (None, 7):
        results = [None if seed is None else each.step(batch(6, seed)) for each in (one, again)]
        tensors = [_state_of(each) for each in (one, again)]
        same += [results[0] == results[1], tensors[0].keys() == tensors[1].keys()]
        same += [torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items()]
    return all(same) and len(same) > 4


def _state_of(one: Learner) -> dict[str, torch.Tensor]:
    """What this rank has of the weights and of the optimizer's state."""
    state = {
        f"{place} {name}": value
        for place, values in one.optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }
    return {
        name: (value.to_local() if isinstance(value, DTensor) else value).detach()
        for name, value in (one.policy.trained() | state).items()
    }


def canaries(of: Ranks, folder: Path, sharding: str) -> dict[str, list[float]]:
    """What the weights of a version in bfloat16 say after a step: of a whole model, and of an adapter."""
    found = {}
    for name in ("sft", "lora"):
        one = learner(of, folder, name, sharding=sharding, publish_dtype="bfloat16", learning_rate=1e-2)
        one.step(batch(6))
        canary = one.policy.canary()
        assert canary is not None
        found[name] = canary.logprobs
    return found


def check_visible(of: Ranks, folder: Path, sharding: str, saved: Path) -> None:
    """The first rank measures how much of the update its part of the weights in a version's file shows."""
    settings: dict[str, Any] = {"sharding": sharding, "publish_dtype": "bfloat16"}
    one = learner(of, folder, "sft", **settings, learning_rate=1e-2)
    one.step(batch(6))
    save(one, saved / "visible")
    again = resumed(of, folder, f"{saved.name}/visible", "sft", **settings)
    assert [each.policy.visible is None for each in (one, again)] == [of.rank > 0] * 2
    if of.rank > 0:
        return
    assert again.policy.visible is not None
    assert again.policy.visible.has_start
    before, shown = (load_file(path / "model.safetensors") for path in (folder / "start", saved / "visible"))
    square = product = 0.0
    for name, parameter in one.policy.weights.items():
        exact = local_part(parameter)
        first, published = (tensors[name][: len(exact)].double() for tensors in (before, shown))
        update = exact.double() - first
        square += float((update * update).sum())
        product += float(((published - first) * update).sum())
    assert abs(one.policy.measured[VISIBLE] - product / square) < 1e-6
    assert abs(product / square - 1) < 0.1


def steps(of: Ranks, folder: Path, sharding: str, saved: Path) -> dict[str, dict[str, Any]]:
    """Of each algorithm two steps and an evaluation, and checkpoints of some; of one a step at each size."""
    results = {}
    for name in ALGORITHMS:
        one = learner(of, folder, name, sharding=sharding)
        results[name] = step(one, batch(6))
        results[f"{name}, again"] = step(one, batch(6, seed=1))
        results[f"{name}, evaluated"] = {"metrics": one.evaluate(batch(4, seed=2))}
        if name in SAVED:
            save(one, saved / name)
            again = resumed(of, folder, f"{saved.name}/{name}", name, sharding=sharding)
            exact = of.gather(goes_on_to_the_bit(one, again))
            results[f"{name}, resumed"] = {"metrics": {"exact": float(all(exact))}}
    for name, size in SIZES.items():
        results[name] = step(learner(of, folder, "dpo", sharding=sharding), batch(size))
    for name, logprobs in canaries(of, folder, sharding).items():
        results[f"{name}, canary"] = {"metrics": {str(place): one for place, one in enumerate(logprobs)}}
    check_visible(of, folder, sharding, saved)
    padded = learner(of, folder, "sft", "padded", sharding=sharding)
    assert padded.policy.forward.layout == "padded"
    results["padded"] = step(padded, batch(6))
    experts = learner(of, folder, "recomputed", "experts", sharding=sharding)
    results["experts"] = step(experts, batch(6))
    assert results["experts"]["metrics"]["aux_loss"] > 1
    replayed = learner(of, folder, "recomputed", "experts", sharding=sharding)
    results["replayed experts"] = step(replayed, routed(batch(6)))
    assert results["replayed experts"]["metrics"]["sampling/routing_differs"] > 0.2
    settings = TrainerConfig.model_validate({"sharding": sharding, "micro_batch_size": 2})
    said = StartingScores(folder / "experts", settings, of, lambda: False).of(batch(7).payloads)
    results["starting scores"] = {
        "metrics": {
            f"{row} {place}": value for row, found in said for place, value in enumerate(found.tolist())
        }
    }
    nothing = Batch(batch(4).payloads, {"advantages": np.zeros(4)})
    results["nothing to learn"] = step(learner(of, folder, "raft", sharding=sharding), nothing)
    return results


def offloaded(of: Ranks, folder: Path) -> dict[str, Any]:
    """A step whose optimizer works on parts in the memory of the CPU, and where these lie."""
    one = learner(of, folder, "dpo", sharding="full", offload=True)
    result = step(one, batch(6))
    return result | {"devices": {str(parameter.device) for parameter in one.policy.parameters()}}


def loading(of: Ranks, folder: Path) -> list[dict[str, int]]:
    """What each rank holds while it loads a policy and a reference, in bytes of tensors, at most and then."""
    held = []
    read = UnreadModel.read

    def counted(unread: UnreadModel, module: torch.nn.Module, device: str) -> None:
        read(unread, module, device)
        held.append(_bytes_of_tensors())

    before = _bytes_of_tensors()
    UnreadModel.read = counted  # type: ignore[method-assign, assignment]
    # In float32, since else the first rank has a sample, which is as large as so small a model.
    one = learner(of, folder, "dpo", "deep", sharding="full", publish_dtype="float32")
    UnreadModel.read = read  # type: ignore[method-assign]
    after = _bytes_of_tensors()
    layers = one.policy.model.get_decoder().layers
    whole = sum(parameter.numel() for parameter in one.policy.parameters())
    layer = sum(parameter.numel() for parameter in layers[0].parameters())
    found = {"most": max(held) - before, "then": after - before, "whole": 4 * whole, "layer": 4 * layer}
    return of.gather(found | {"outside": 4 * (whole - len(layers) * layer)})


def _bytes_of_tensors() -> int:
    gc.collect()
    storages = {}
    for tensor in gc.get_objects():
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            storages[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
    return sum(storages.values())


def failures(of: Ranks, folder: Path, sharding: str) -> list[list[str]]:
    """What each rank raises where only the first one wants to stop, and where one row has no finite loss."""
    raised = []
    one = learner(of, folder, "sft", sharding=sharding)
    one._should_stop = lambda: of.rank == 0
    rows = batch(8)
    try:
        one.step(rows)
    except Abandoned:
        raised.append("Abandoned")
    one._should_stop = lambda: False
    bad = learner(of, folder, "grpo", sharding=sharding)
    columns = {**rows.columns, "advantages": np.where(np.arange(8) == 3, np.nan, 1.0)}
    try:
        bad.step(Batch(rows.payloads, columns))
    except NonFiniteLoss:
        raised.append("NonFiniteLoss")
    after, fresh = one.step(rows), learner(of, folder, "sft", sharding=sharding).step(rows)
    raised.append(str(after["loss"]))
    raised.append(f"{abs(after['grad_norm'] - fresh['grad_norm']) < 1e-6}")
    return of.gather(raised)


def assert_same_weights(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, atol=1e-5, rtol=0, msg=name)


def main(folder: Path) -> None:
    ranks.BUCKET = 1000  # so that the gradients of so small a model are several messages too
    with ranks.join_ranks() as of:
        found: dict[str, Any] = {}
        for sharding in ("none", "full"):
            found[sharding] = steps(of, folder, sharding, folder / sharding)
            found[f"{sharding}, failures"] = failures(of, folder, sharding)
            one = resumed(of, folder, "alone/two", sharding=sharding)
            found[f"{sharding}, resumed"] = step(one, batch(6, seed=3))
            save(one, folder / sharding / "resumed")
        found["offloaded"] = offloaded(of, folder)
        found["loading"] = loading(of, folder)
        if of.rank == 0:
            torch.save(found, folder / "found.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
