"""Parts: a function declares its section, and a user's own is checked as far as its signature tells."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.recipes import recipe
from trinity_db.config import signatures
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.recipes.parts.kinds import KINDS, chosen, part, positional, readable, section
from trinity_db.trainer.recipes.parts.options import Own
from trinity_db.trainer.recipes.parts.totals import Totals

OURS = [(kind, name) for kind, one in KINDS.items() for name in one.functions]


@pytest.mark.parametrize(("kind", "name"), OURS)
def test_a_part_reads_what_its_kind_can_read(kind: str, name: str) -> None:
    assert set(positional(KINDS[kind].functions[name])) <= set(readable(kind))


@pytest.mark.parametrize(("kind", "name"), OURS)
def test_each_option_of_a_part_has_its_text_and_nothing_else_has(kind: str, name: str) -> None:
    fields = section(kind, name).model_fields
    assert all(field.description for key, field in fields.items() if key != "name")
    function = KINDS[kind].functions[name]
    assert set(signatures.texts(function)) <= {*fields, *positional(function)}


@pytest.mark.parametrize(("kind", "name"), OURS)
def test_a_section_has_the_defaults_of_its_function_and_comes_whole_to_another_process(
    kind: str, name: str
) -> None:
    required = {"length": 3} if name == "seq_mean_token_sum_norm" else {}
    made = chosen(kind, name, **required)
    for one in signatures.keyword_only(KINDS[kind].functions[name]):
        assert getattr(made, one.name) == required.get(one.name, one.default)
    assert pickle.loads(pickle.dumps(made)) == made


def test_a_signature_says_limits_and_its_docstring_texts() -> None:
    field = section("policy loss", "ppo_clip").model_fields["clip_low"]
    assert field.description == "The probability ratio new/old is clipped below 1 - clip_low."
    with pytest.raises(ValueError, match="less than 1"):
        chosen("policy loss", "ppo_clip", clip_low=1)
    assert section("policy loss", "ppo_clip").__doc__ == "The clipped probability ratio of PPO."


LOSS = """
def mine(logprobs, advantages, mask, *, scale: float = 2.0, mode: str):
    return {"loss": -scale * advantages * logprobs}

def broken(logprobs):
    raise RuntimeError("no")

def wrong(logprobs):
    return logprobs.sum()

def unknown(logprobs, values):
    return {"loss": logprobs}

def options(logprobs, **others):
    return {"loss": logprobs}
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "losses.py"
    file.write_text(LOSS)
    return file


def test_a_loss_of_the_users_own_says_by_its_signature_what_it_needs(own: Path) -> None:
    algorithm = create(recipe("policy_gradient", loss={"name": f"{own}:mine", "mode": "a"}))
    assert set(algorithm.needs) == {"advantages", "mask"}


def test_a_loss_of_the_users_own_is_called_with_its_options(own: Path) -> None:
    function = Own(function=f"{own}:mine", options={"scale": 3, "mode": "a"})
    loss = part("policy loss", function)(
        {"logprobs": torch.ones(2, 3), "advantages": torch.ones(2, 1), "mask": torch.ones(2, 3).bool()}
    )
    assert torch.equal(loss["loss"], torch.full((2, 3), -3.0))


TYPED = """
from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

def mine(logprobs: Tensor, *, scale: float = 2.0, mode: Literal["a", "b"] | None = None) -> dict[str, Tensor]:
    return {"loss": -scale * logprobs}

def strange(logprobs: Tensor, *, scale: Tensor | None = None) -> dict[str, Tensor]:
    return {"loss": logprobs}
"""


def test_what_is_imported_for_type_checkers_may_stand_beside_what_a_part_reads(tmp_path: Path) -> None:
    file = tmp_path / "typed.py"
    file.write_text(TYPED)
    loss = part("policy loss", Own(function=f"{file}:mine", options={"scale": "3", "mode": "b"}))
    assert loss.options == {"scale": 3.0, "mode": "b"}
    with pytest.raises(ConfigError, match="scale: Input should be a valid number"):
        part("policy loss", Own(function=f"{file}:mine", options={"scale": "much"}))
    with pytest.raises(ConfigError, match=r"typed.py:strange': 'Tensor', in the type of an option, is not"):
        part("policy loss", Own(function=f"{file}:strange"))


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("mien", {}, "has no function 'mien'; did you mean 'mine'"),
        ("mine", {"mode": "a", "scael": 1}, "unknown key 'scael'; did you mean 'scale'"),
        ("mine", {"mode": "a", "scale": "much"}, "scale: Input should be a valid number"),
        ("mine", {}, "mode: Field required"),
        ("unknown", {}, "it reads 'values', but a policy loss can read logprobs, mask, "),
        ("options", {}, r"it takes \*\*others; name its options"),
    ],
)
def test_what_is_wrong_with_a_loss_of_the_users_own_is_said_before_the_first_step(
    own: Path, name: str, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        create(recipe("grpo", loss={"name": f"{own}:{name}", **given}))
    assert "\n" not in str(error.value)
    assert "olicy loss" in str(error.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("broken", r"raised RuntimeError: no \(.*losses.py, line \d+, in broken\)$"),
        ("wrong", r"must return a dict with 'loss', a.* shape \[2, 3\]"),
    ],
)
def test_a_loss_of_the_users_own_that_fails_is_named(own: Path, name: str, message: str) -> None:
    loss = part("policy loss", Own(function=f"{own}:{name}"))
    with pytest.raises(TrinityError, match=message):
        loss({"logprobs": torch.ones(2, 3), "mask": torch.ones(2, 3).bool()})


def test_every_kind_of_part_can_be_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(
        "def advantage(rewards, groups): return rewards\n"
        "def correction(mask): return mask.float()\n"
        "def divergence(logprobs, reference): return (logprobs - reference) ** 2\n"
        "def praise(teacher, old, *, most: float): return (teacher - old).clamp(max=most)\n"
        "def aggregation(values, mask, totals): return (values * mask).sum() / totals.tokens\n"
        "def pairs(chosen, rejected): return rejected - chosen\n"
        "def labelled(response, desirable, response_length): return -response / response_length\n"
        "def tokens(logprobs): return -logprobs\n"
    )
    create(
        recipe(
            "grpo",
            advantage=f"{file}:advantage",
            correction=f"{file}:correction",
            kl={"name": f"{file}:divergence", "coefficient": 2.0},
            distillation={"name": f"{file}:praise", "coefficient": 0.5, "most": 1.0},
            aggregation=f"{file}:aggregation",
        )
    )
    mask = torch.ones(2, 3, dtype=torch.bool)
    rows = {"mask": mask, "logprobs": -torch.ones(2, 3), "weight": torch.ones(2)}
    rows |= {"entropy": torch.ones(2, 3), "correct": mask}
    totals = Totals(tokens=6, sequences=2, items=2)
    assert create(recipe("sft", loss=f"{file}:tokens")).shares(rows, totals)["loss"].item() == 1.0
    assert set(create(recipe("kto", loss=f"{file}:labelled")).needs) == {"rewards"}
    losses = ["cpo", {"name": f"{file}:pairs", "weight": 0.5}]
    assert create(recipe("dpo", loss=losses)).needs == {}
