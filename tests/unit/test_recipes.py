"""Recipes: how they are written down, and what they become."""

from functools import partial
from typing import Any

import pytest

from tests.support.recipes import recipe
from trinity_db.config.base import Settings, validate
from trinity_db.errors import ConfigError
from trinity_db.trainer.algorithms.compositions import create
from trinity_db.trainer.config import AlgorithmConfig
from trinity_db.trainer.recipes.parts.kinds import chosen
from trinity_db.trainer.recipes.parts.options import Own, OwnDivergence
from trinity_db.trainer.recipes.recipes import (
    RECIPES,
    Composition,
    LabelsConfig,
    PolicyGradientConfig,
    PreferenceConfig,
    SupervisedConfig,
)

advantage = partial(chosen, "advantage")
loss = partial(chosen, "policy loss")
pairs = partial(chosen, "preference loss")
labels = partial(chosen, "label loss")

IMPORTANCE = {"name": "truncated_importance_sampling", "proximal": "interpolated"}


class Run(Settings):
    algorithm: AlgorithmConfig


def read(algorithm: Any) -> Composition:
    return validate(Run, {"algorithm": algorithm}, "run.yaml").algorithm


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_its_name_and_can_be_stored_and_made(name: str) -> None:
    config = read(name)
    assert config == RECIPES[name].model_copy(update={"name": name})
    assert read(config.model_dump(mode="json")) == config
    create(config)


def test_recipes_draw_groups_rows_labels_or_pairs() -> None:
    kinds = ("rows", "labels", "pairs")
    drawn = {kind: {name for name, one in RECIPES.items() if one.draws == kind} for kind in kinds}
    pairs = {"dpo", "orpo", "simpo", "cpo", "reward_model"}
    assert drawn == {"rows": {"sft", "dft"}, "labels": {"kto"}, "pairs": pairs}
    assert RECIPES["raft"].draws == "groups"


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("grpo", {"mask", "behaviour", "advantages"}),
        ("opmd", {"mask", "advantages"}),
        ("reinforce_plus_plus", {"mask", "behaviour", "advantages", "reference", "rewards", "groups"}),
        ("ppo", {"mask", "behaviour", "rewards", "values"}),
        ("a2c", {"mask", "rewards", "values"}),
        ("on_policy_distillation", {"mask", "behaviour", "advantages", "teacher"}),
        ("dpo", {"reference"}),
        ("simpo", set()),
        ("kto", {"rewards", "reference", "mismatched"}),
        ("sft", set()),
    ],
)
def test_what_an_algorithm_needs_follows_from_its_parts(name: str, columns: set[str]) -> None:
    assert set(create(recipe(name)).needs) == columns


def test_a_correction_asks_for_the_policy_at_the_start_of_the_step() -> None:
    needs = create(recipe("grpo", correction=IMPORTANCE)).needs
    assert set(needs) == {"mask", "advantages", "behaviour", "proximal", "staleness"}
    assert needs["staleness"] == "correction 'truncated_importance_sampling'"
    assert "staleness" not in create(recipe("grpo", correction="m2po")).needs


def test_an_option_of_one_part_stands_flat() -> None:
    changed = read({"name": "grpo", "clip_low": 0.1, "clip_high": 0.28, "scale_rewards": "batch"})
    assert changed == PolicyGradientConfig(
        name="grpo",
        advantage=advantage("group", scale_rewards="batch"),
        loss=loss("ppo_clip", clip_low=0.1, clip_high=0.28),
    )
    assert read({"name": "orpo", "beta": 0.7}) == PreferenceConfig(
        name="orpo",
        loss=(pairs("odds_ratio", beta=0.7), pairs("chosen_nll")),
    )


def test_a_part_is_a_name_or_a_mapping_and_keeps_its_options_where_its_name_stays() -> None:
    assert read({"name": "grpo", "loss": "cispo", "kl": "k3"}) == PolicyGradientConfig(
        name="grpo", loss=loss("cispo"), kl=chosen("kl", "k3")
    )
    assert read({"name": "dapo", "loss": {"clip_low": 0.1}}) == PolicyGradientConfig(
        name="dapo", loss=loss("ppo_clip", clip_low=0.1, clip_high=0.28)
    )
    changed = read({"name": "dapo", "loss": {"name": "gspo", "clip_low": 0.1}, "clip_high": 0.3})
    assert changed == PolicyGradientConfig(name="dapo", loss=loss("gspo", clip_low=0.1, clip_high=0.3))
    without = read({"name": "reinforce_plus_plus", "kl": None})
    assert without == PolicyGradientConfig(
        name="reinforce_plus_plus", advantage=advantage("reward"), whiten=True
    )


def test_losses_of_pairs_may_be_several() -> None:
    several = read({"name": "dpo", "loss": [{"name": "hinge", "weight": 0.8}, "chosen_nll"]})
    assert several == PreferenceConfig(
        name="dpo",
        loss=(pairs("hinge", weight=0.8), pairs("chosen_nll")),
    )


def test_a_part_of_the_users_own_has_its_options_beside_it() -> None:
    changed = read({"name": "grpo", "loss": {"name": "a/b.py:mine", "scale": 2}, "advantage": "a/b.py:best"})
    assert isinstance(changed, PolicyGradientConfig)
    assert changed.loss == Own(function="a/b.py:mine", options={"scale": 2})
    assert changed.advantage == Own(function="a/b.py:best")
    kl = {"name": "a/b.py:far", "coefficient": 0.1, "scale": 2}
    changed = read({"name": "grpo", "kl": kl})
    assert isinstance(changed, PolicyGradientConfig)
    assert changed.kl == OwnDivergence(function="a/b.py:far", options={"scale": 2}, coefficient=0.1)
    assert read(changed.model_dump(mode="json")) == changed


def test_options_of_kto_and_its_loss_stand_flat() -> None:
    assert read({"name": "kto", "beta": 0.3, "undesirable_weight": 1.3}) == LabelsConfig(
        name="kto", loss=labels("kto", beta=0.3), undesirable_weight=1.3
    )
    unpaired = read({"name": "kto", "loss": "apo_zero_unpaired", "beta": 0.3})
    assert unpaired == LabelsConfig(name="kto", loss=labels("apo_zero_unpaired", beta=0.3))
    assert set(create(unpaired).needs) == {"rewards", "reference"}


def test_raft_learns_above_a_limit() -> None:
    assert read({"name": "raft", "reward_above": 0.5}) == SupervisedConfig(name="raft", reward_above=0.5)


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("gprpo", "algorithm: there is no 'gprpo'; did you mean 'grpo'?"),
        ({"name": ["a"]}, r"algorithm: there is no '\['a'\]'; known: policy_gradient, grpo, "),
        ({"name": "grpo", "loss": "cipso"}, "algorithm.loss: there is no 'cipso'; did you mean 'cispo'?"),
        ({"name": "grpo", "clip_hihg": 1}, "unknown key 'clip_hihg'; did you mean 'clip_high'?"),
        (
            {"name": "grpo", "loss": {"name": "cispo", "clip_hgih": 1}},
            "unknown key 'algorithm.loss.clip_hgih'; did you mean 'clip_high'?",
        ),
        ({"name": "sft", "clip_low": 1}, "unknown key 'clip_low'; known keys: aggregation, loss, name"),
        (
            {"name": "opmd", "loss": "rec", "temperature": 3},
            "algorithm: 'temperature' is an option of advantage opmd and of loss rec: move it into one",
        ),
        ({"name": "grpo", "kl": {"coefficient": 1}}, r"it needs a name, such as kl: {name: k1, ...}"),
        ({"name": "grpo", "kl": {"name": "k1", "applies_to": "loss"}}, "algorithm.kl: k1 as a loss"),
        ({"name": "dpo", "beta": 0}, r"algorithm.loss.0.beta: Input should be greater than 0 \(got 0\)"),
        ({"name": "kto", "desirable_weight": 0}, "algorithm.desirable_weight: Input should be greater"),
        ({"name": "kto", "loss": "sigmoid"}, "algorithm.loss: there is no 'sigmoid'; "),
        ({"name": "grpo", "value": "gae"}, "algorithm: value: the value is the baseline of a reward, and"),
        ({"name": "dpo", "loss": []}, "algorithm.loss: .*name at least one loss"),
        ({"name": "on_policy_distillation", "kl": "k1"}, "algorithm: kl: it is subtracted from rewards, whi"),
        ({"name": "dpo", "loss": ["sigmiod"]}, "algorithm.loss.0: there is no 'sigmiod'; did you mean 'sig"),
        ({"name": "grpo", "scale_rewards": [1]}, "algorithm.advantage.scale_rewards: Input should be"),
        ({"name": "grpo", "loss": 3}, "algorithm.loss: Input should be"),
        (3, "algorithm: Input should be"),
    ],
)
def test_a_wrong_algorithm_is_explained_in_one_line(algorithm: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read(algorithm)
    assert "\n" not in str(error.value)
