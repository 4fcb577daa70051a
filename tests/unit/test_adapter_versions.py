"""Versions that are adapters: what they have, who loads them, and what they compute."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support.saving import resume, save
from tests.unit.test_adapter import LORA, batch, experts, learner, logits
from trinity_db.config.shared import ModelConfig, ScratchConfig
from trinity_db.errors import ConfigError
from trinity_db.explorer.engines import transformers_engine
from trinity_db.explorer.engines.dialects import VLLM
from trinity_db.explorer.engines.endpoint import EndpointEngine
from trinity_db.explorer.engines.engine import Request, sample_all
from trinity_db.explorer.engines.transformers_engine import TransformersEngine
from trinity_db.explorer.engines.vllm.checkpoints import Models
from trinity_db.models import build_scratch, check_source, context_length, load_model, load_tokenizer
from trinity_db.models.adapter_folder import Base, base_folder, is_adapter
from trinity_db.models.canary import read as read_canary
from trinity_db.models.folder_digest import digest, verify
from trinity_db.models.frozen_model import FrozenModel
from trinity_db.models.rounding import round_to, seed_names
from trinity_db.trainer.config import TrainerConfig

__all__ = ["experts"]  # a fixture

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own

ROUNDING = 1e-5  # nats: W·x + B·(A·x) and (W + B·A)·x round differently in float32
BESIDE_WEIGHTS = ["adapter_config.json", "adapter_model.safetensors", "base.json", "canary.json"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder with version 0 and with adapters on it, versions 1 and 2."""
    folder = tmp_path_factory.mktemp("run")
    start = folder / "version-000000"
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=64, heads=2, context=32), 3, start)
    one = learner(start, publish="adapter")
    for version in (1, 2):
        one.step(batch(version))
        save(folder / f"version-{version:06d}", one, load_tokenizer(start))
    return folder


def by_peft(run: Path, version: int) -> Any:
    """What peft makes of a version: its layers compute the adapter beside the weights of the base."""
    start = load_model(run / "version-000000", "cpu")
    return peft.PeftModel.from_pretrained(start, str(run / f"version-{version:06d}")).eval()


def test_a_version_is_what_peft_loads_and_little_else(run: Path, tmp_path: Path) -> None:
    one = learner(run / "version-000000", publish="adapter")
    one.step(batch(1))
    hashed = save(tmp_path / "v1", one, load_tokenizer(run / "version-000000")).version
    assert verify(tmp_path / "v1", hashed), "the hash that was computed while it was written"
    assert sorted(path.name for path in (tmp_path / "v1").iterdir()) == BESIDE_WEIGHTS
    whole = (run / "version-000000" / "model.safetensors").stat().st_size
    assert (tmp_path / "v1" / "adapter_model.safetensors").stat().st_size < whole / 4
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained(str(tmp_path / "v1")).eval()
    assert torch.equal(logits(theirs), logits(one.policy.model))


def test_it_is_loaded_as_the_model_with_the_adapter_in_it(run: Path) -> None:
    found = load_model(run / "version-000002", "cpu").state_dict()
    before = load_model(run / "version-000000", "cpu").state_dict()
    matrices = load_file(run / "version-000002" / "adapter_model.safetensors")
    assert found.keys() == before.keys()
    changed = 0
    for name, weight in before.items():
        layer = f"base_model.model.{name.removesuffix('.weight')}"
        a, b = (matrices.get(f"{layer}.lora_{side}.weight") for side in "AB")
        expected = weight.double()
        if a is not None and b is not None:
            expected = expected + LORA["alpha"] / LORA["rank"] * b.double() @ a.double()
            changed += 1
        torch.testing.assert_close(found[name].double(), expected, atol=1e-6, rtol=0)
    assert changed == 2 * 7 == len(matrices) / 2


def test_tokenizer_and_context_are_those_of_its_base(run: Path) -> None:
    version = run / "version-000001"
    assert is_adapter(version)
    assert load_tokenizer(version).get_vocab() == load_tokenizer(run / "version-000000").get_vocab()
    assert context_length(version) == 32
    check_source(ModelConfig(path=version))


def test_a_frozen_model_may_be_one(run: Path) -> None:
    rows = batch().payloads
    found = dict(FrozenModel(run / "version-000002", TrainerConfig(), device="cpu").scores(rows))
    model = by_peft(run, 2)
    for place, row in enumerate(rows):
        tokens = torch.from_numpy(row.token_ids).long()
        with torch.no_grad():
            said = model(tokens[None]).logits[0, :-1].log_softmax(-1).gather(-1, tokens[1:, None])[:, 0]
        torch.testing.assert_close(torch.from_numpy(found[place]), said[2:], atol=ROUNDING, rtol=0)


def test_its_canary_is_what_it_says(run: Path) -> None:
    canary = read_canary(run / "version-000002")
    assert canary is not None
    tokens = torch.tensor([canary.token_ids])
    with torch.no_grad():
        said = by_peft(run, 2)(tokens).logits[0, :-1].log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(canary.logprobs), said, atol=ROUNDING, rtol=0)


def test_it_is_exact_whatever_whole_versions_are_rounded_to(run: Path, tmp_path: Path) -> None:
    start = run / "version-000000"
    found = []
    for dtype in ("float32", "bfloat16"):
        one = learner(start, publish="adapter", publish_dtype=dtype)
        one.step(batch(1))
        save(tmp_path / dtype, one, load_tokenizer(start))
        found.append([(tmp_path / dtype / name).read_bytes() for name in BESIDE_WEIGHTS[:-1]])
    assert found[0] == found[1]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_its_canary_is_of_merged_weights_as_engines_round_them(run: Path, tmp_path: Path, dtype: str) -> None:
    one = learner(run / "version-000000", publish="adapter", publish_dtype=dtype)
    one.step(batch(1))
    exact = logits(one.policy.model)
    save(tmp_path / "v1", one, load_tokenizer(run / "version-000000"))
    assert torch.equal(logits(one.policy.model), exact)
    canary = read_canary(tmp_path / "v1")
    assert canary is not None
    assert canary.merged_dtype == dtype
    Models(dtype).show(tmp_path / "v1", tmp_path / "view")
    tokens = torch.tensor([canary.token_ids])
    with torch.no_grad():
        said = load_model(tmp_path / "view", "cpu")(tokens).logits[0, :-1].log_softmax(-1)
    found = said.gather(-1, tokens[0, 1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(canary.logprobs), found, atol=1e-5, rtol=0)


@pytest.mark.parametrize("version", [1, 2])
def test_both_engines_sample_from_the_same_rounded_weights(run: Path, tmp_path: Path, version: int) -> None:
    """The engine `transformers` rounds an adapter onto its base in memory, and a file for vLLM is written."""
    engine = TransformersEngine("cpu", dtype="bfloat16")
    sampled(engine, run / "version-000000", 0)
    found = sampled(engine, run / f"version-{version:06d}", version)
    Models("bfloat16").show(run / f"version-{version:06d}", tmp_path / "view")
    expected = sampled(engine, tmp_path / "view", version)
    engine.close()
    assert torch.equal(found[1], expected[1])


@pytest.fixture
def engine() -> Iterator[TransformersEngine]:
    one = TransformersEngine("cpu")
    yield one
    one.close()


def sampled(engine: TransformersEngine, folder: Path, version: int) -> tuple[Tensor, Tensor, list[int]]:
    """Tokens of a row, the log-probabilities of those that the engine sampled, and their versions."""
    asyncio.run(engine.load(folder, version))
    (answer,) = sample_all(engine, [Request([1, 2, 3], 12, seed=version)])
    return torch.tensor([1, 2, 3, *answer.token_ids]), torch.tensor(answer.logprobs), answer.versions


def test_the_engine_reads_the_base_once_and_each_adapter_onto_it(
    run: Path, engine: TransformersEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def counted(path: Path, device: str | None = None) -> Any:
        read.append(path)
        return load_model(path, device)

    monkeypatch.setattr(transformers_engine, "load_model", counted)
    monkeypatch.setattr("trinity_db.models.loading.load_model", counted)
    start = run / "version-000000"
    # Back and forth, since evaluations are pinned to versions.
    for version in (0, 1, 2, 1):
        tokens, said, versions = sampled(engine, run / f"version-{version:06d}", version)
        assert set(versions) == {version}
        model = by_peft(run, version) if version else load_model(start, "cpu")
        with torch.no_grad():
            rows = model(tokens[None]).logits[0, 2:-1].log_softmax(-1)
        torch.testing.assert_close(said, rows.gather(-1, tokens[3:, None])[:, 0], atol=ROUNDING, rtol=0)
    assert read == [start, start], "the model of version 0, and the base that adapters are merged with"


def test_the_engine_takes_whole_versions_and_adapters_of_a_run_in_turn(
    run: Path, engine: TransformersEngine, tmp_path: Path
) -> None:
    start = run / "version-000000"
    rounded = learner(start, publish="merged", publish_dtype="bfloat16")
    rounded.step(batch(7))
    save(tmp_path / "merged", rounded, load_tokenizer(start))
    fresh = TransformersEngine("cpu")
    expected = sampled(fresh, run / "version-000002", 2)
    fresh.close()
    for folder in (run / "version-000001", tmp_path / "merged"):
        sampled(engine, folder, 1)
    found = sampled(engine, run / "version-000002", 2)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1]), "no weight is left that was rounded"


def test_an_adapter_that_is_refused_leaves_the_weights_of_before(
    run: Path, engine: TransformersEngine, tmp_path: Path
) -> None:
    before = sampled(engine, run / "version-000001", 1)
    shutil.copytree(run / "version-000002", tmp_path / "version-000002")
    (tmp_path / "version-000002" / "adapter_model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ConfigError, match=r"adapter_model.safetensors: cannot be read: .*; restore it"):
        asyncio.run(engine.load(tmp_path / "version-000002", 2))
    (answer,) = sample_all(engine, [Request([1, 2, 3], 12, seed=1)])
    assert torch.equal(torch.tensor(answer.logprobs), before[1])
    assert set(answer.versions) == {1}


def test_a_base_that_is_another_model_is_refused(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "version-000001", tmp_path / "version-000001")
    other = tmp_path / "other"
    build_scratch(ScratchConfig(alphabet="0123456789", hidden_size=64, heads=2, context=32), 4, other)
    content = json.loads((tmp_path / "version-000001" / "base.json").read_text())
    (tmp_path / "version-000001" / "base.json").write_text(json.dumps(content | {"path": str(other)}))
    with pytest.raises(ConfigError, match=r"adapter on the model in \S+other, which has changed or is gone"):
        load_model(tmp_path / "version-000001", "cpu")


@pytest.mark.parametrize("says", ["the run's folder", "version 0 beside it"])
def test_a_base_that_moved_is_found(run: Path, tmp_path: Path, says: str) -> None:
    old = tmp_path / "old"
    shutil.copytree(run / "version-000000", old)
    one = learner(old, publish="adapter")
    save(tmp_path / "copy" / "version-000001", one, load_tokenizer(old))
    if says == "the run's folder":
        new = tmp_path / "elsewhere"
        (tmp_path / "copy" / "base.json").write_text(Base(new, "any").content)
    else:
        new = tmp_path / "copy" / "version-000000"
    old.rename(new)
    assert base_folder(tmp_path / "copy" / "version-000001") == new


def test_an_adapter_of_unknown_base_is_refused_with_one_line(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run / "version-000001", tmp_path / "foreign")
    (tmp_path / "foreign" / "base.json").unlink()
    with pytest.raises(
        ConfigError, match=r"without a readable base.json.*; merge it into its model"
    ) as refused:
        check_source(ModelConfig(path=tmp_path / "foreign"))
    assert "\n" not in str(refused.value)


def _without_one(matrices: dict[str, Tensor]) -> dict[str, Tensor]:
    return dict(list(matrices.items())[1:])


def _cut(matrices: dict[str, Tensor]) -> dict[str, Tensor]:
    name = next(iter(matrices))
    return matrices | {name: matrices[name][:1].clone()}


def _and_another(matrices: dict[str, Tensor]) -> dict[str, Tensor]:
    return matrices | {"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 64)}


@pytest.mark.parametrize("change", [_without_one, _cut, _and_another])
def test_matrices_that_are_missing_unknown_or_of_another_shape_are_refused(
    run: Path, tmp_path: Path, change: Any
) -> None:
    """peft itself would load the others."""
    shutil.copytree(run / "version-000002", tmp_path / "v2")
    file = tmp_path / "v2" / "adapter_model.safetensors"
    save_file(change(load_file(file)), file)
    resumed = learner(run / "version-000001", start=run / "version-000000")
    before = logits(resumed.policy.model)
    adapter = resumed.policy.adapter
    assert adapter is not None
    message = r"v2\S+: does not fit this run's adapter: 1 matrices are missing.*lora_A\.weight; restore it"
    with pytest.raises(ConfigError, match=message):
        adapter.load(tmp_path / "v2")
    assert torch.equal(logits(resumed.policy.model), before)


@pytest.mark.parametrize("then", ["adapter", "merged"])
def test_training_goes_on_from_one_as_if_it_had_not_stopped(run: Path, tmp_path: Path, then: str) -> None:
    """Also where the trainer publishes otherwise than before."""
    start = run / "version-000000"
    steady = learner(start, "dpo", publish="adapter")
    steady.step(batch(0))
    save(tmp_path / "v1", steady, load_tokenizer(start))
    resumed = learner(tmp_path / "v1", "dpo", start, publish=then)
    resume(tmp_path / "v1", resumed)
    for seed in range(1, 4):
        assert steady.step(batch(seed)) == resumed.step(batch(seed))
    assert torch.equal(logits(steady.policy.model), logits(resumed.policy.model))


@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
def test_fused_experts_are_merged_too(experts: Path, tmp_path: Path) -> None:
    one = learner(experts, publish="adapter")
    one.step(batch(0))
    save(tmp_path / "v1", one, load_tokenizer(experts))
    engine = TransformersEngine("cpu")
    live = one.policy.model
    torch.testing.assert_close(logits(load_model(tmp_path / "v1", "cpu")), logits(live), atol=1e-5, rtol=0)
    tokens, said, _ = sampled(engine, tmp_path / "v1", 1)
    engine.close()
    with torch.no_grad():
        rows = live(tokens[None]).logits[0, 2:-1].log_softmax(-1)
    torch.testing.assert_close(said, rows.gather(-1, tokens[3:, None])[:, 0], atol=ROUNDING, rtol=0)
    models = Models("float32")
    models.show(tmp_path / "v1", tmp_path / "view")
    merged, base = (load_file(folder / "model.safetensors") for folder in (tmp_path / "view", experts))
    assert merged.keys() == base.keys()


def test_vllm_is_shown_the_whole_model_one_at_a_time(run: Path, tmp_path: Path) -> None:
    models = Models("bfloat16")
    shown = [models.show(run / f"version-{version:06d}", tmp_path / f"view-{version}") for version in (1, 2)]
    assert shown[0] == shown[1]
    assert {dtype for dtype, _ in shown[0].values()} == {"BF16"}
    assert not (tmp_path / "view-1" / "model.safetensors").exists(), "the disk holds one"
    found = load_model(tmp_path / "view-2", "cpu").state_dict()
    exact = load_model(run / "version-000002", "cpu")
    seeds = seed_names(exact)
    for name, weight in exact.state_dict().items():
        assert torch.equal(found[name], round_to(weight, seeds[name], torch.bfloat16).float())
    vocabularies = [load_tokenizer(one).get_vocab() for one in (tmp_path / "view-2", run / "version-000000")]
    assert vocabularies[0] == vocabularies[1]


def test_a_server_goes_on_if_an_adapter_cannot_be_merged(run: Path, tmp_path: Path) -> None:
    (tmp_path / "view").write_text("a file in the way")
    with pytest.raises(ConfigError, match=r"version-000001: cannot be merged with its base: .*File exists"):
        Models("float32").show(run / "version-000001", tmp_path / "view")


def test_servers_of_other_people_get_no_adapter(run: Path) -> None:
    engine = EndpointEngine(["http://127.0.0.1:9"], VLLM(None))
    with pytest.raises(
        ConfigError, match=r"version 1 is an adapter.*start the trainer with trainer.publish: m"
    ):
        asyncio.run(engine.load(run / "version-000001", 1))


def test_its_digest_is_of_the_base_too(run: Path) -> None:
    content = json.loads((run / "version-000001" / "base.json").read_text())
    assert content["digest"] == digest(run / "version-000000")
