"""Advantages and the shaping of rewards against verl's and Trinity-RFT's.

Of a group of one both take the raw reward for its advantage where ours is 0, so such groups are compared only
where a peer has them at 0 too, or knows no groups. Trinity-RFT computes in float32.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from trinity.algorithm.advantage_fn import ADVANTAGE_FN
from trinity.common.experience import EID, Experience
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo import core_algos
from verl.workers.reward_manager.dapo import DAPORewardManager

from tests.others.peers.cases import GROUPS, LENGTHS, Case, agree, every_case
from trinity_db.processors.steps import rewards
from trinity_db.trainer.recipes.parts import advantages

MAX_LENGTH, BUFFER = 20, 8
SHAPING = {"max_response_length": MAX_LENGTH, "buffer_length": BUFFER}


@dataclass(frozen=True)
class Rows:
    """Rows of a case."""

    places: list[int]
    """Where they stand in the case."""
    rewards: Tensor
    """[n]"""
    mask: Tensor
    """[n, K]"""
    penalties: Tensor
    """[n, K] Of either sign."""

    @property
    def groups(self) -> list[int]:
        return [GROUPS[place] for place in self.places]

    @property
    def lengths(self) -> list[int]:
        """Up to the last trained token."""
        return [LENGTHS[place] for place in self.places]


def all_rows(case: Case) -> Rows:
    return Rows(list(range(len(GROUPS))), case.rewards, case.mask, 0.1 * case.token_advantages)


def compared(case: Case) -> Rows:
    """Those of groups with more than one member."""
    places = [place for place, of in enumerate(GROUPS) if GROUPS.count(of) > 1]
    return Rows(places, case.rewards[places], case.mask[places], 0.1 * case.token_advantages[places])


def ours(name: str, rows: Rows, **options: Any) -> Tensor:
    """[n]"""
    part = getattr(advantages, name)
    return torch.from_numpy(part(rows.rewards.numpy(), rows.groups, **options))


def of_verl(name: str, rows: Rows, penalised: bool = False, **options: Any) -> Tensor:
    """[n, K] From rewards that stand at the last token of each row, less a penalty for each token."""
    per_token = torch.zeros_like(rows.penalties)
    per_token[range(len(rows.places)), [length - 1 for length in rows.lengths]] = rows.rewards
    if penalised:
        per_token -= rows.penalties.masked_fill(~rows.mask, 0.0)
    index = np.array([str(of) for of in rows.groups], dtype=object)
    function = getattr(core_algos, f"compute_{name}_outcome_advantage")
    computed: Tensor = function(
        token_level_rewards=per_token, response_mask=rows.mask.double(), index=index, **options
    )[0]
    return computed


def of_trinity(name: str, rows: Rows, **options: Any) -> Tensor:
    """[n]"""
    experiences = [
        Experience(
            eid=EID(task=of),
            tokens=torch.zeros(length + 1, dtype=torch.int64),
            prompt_length=1,
            logprobs=torch.zeros(length),
            reward=reward,
        )
        for of, length, reward in zip(rows.groups, rows.lengths, rows.rewards.tolist(), strict=True)
    ]
    ADVANTAGE_FN.get(name)(**options).process(experiences)
    return torch.stack([experience.advantages[0] for experience in experiences]).double()


def whitened(rows: Rows, per_token: Iterable[NDArray[np.float64]]) -> Tensor:
    """[n, K] Our advantages of each trained token, 0 elsewhere."""
    result = torch.zeros_like(rows.penalties)
    result[rows.mask] = torch.from_numpy(np.concatenate(advantages.whiten(list(per_token))))
    return result


def repeated(rows: Rows, values: Tensor) -> Iterator[NDArray[np.float64]]:
    """A value for each row, as one for each of its trained tokens."""
    for value, mask in zip(values.tolist(), rows.mask, strict=True):
        yield np.full(int(mask.sum()), value)


@every_case
def test_group(case: Case) -> None:
    rows = compared(case)
    agree("group", "verl", ours("group", rows), of_verl("grpo", rows)[:, 0])
    agree("group", "Trinity-RFT", ours("group", rows), of_trinity("grpo", rows))


@every_case
def test_group_without_scale(case: Case) -> None:
    rows = compared(case)
    given = ours("group", rows, scale_rewards="none")
    agree("group, none", "verl", given, of_verl("grpo", rows, norm_adv_by_std_in_grpo=False)[:, 0])


@every_case
def test_group_in_units_of_the_batch(case: Case) -> None:
    rows = compared(case)
    given = ours("group", rows, scale_rewards="batch")
    agree("group, batch", "Trinity-RFT", given, of_trinity("grpo", rows, std_cal_level="batch"))


@every_case
@pytest.mark.parametrize("scale_rewards", ["none", "group"])
def test_group_of_a_whole_population(case: Case, scale_rewards: str) -> None:
    rows = compared(case)
    given = ours("group", rows, scale_rewards=scale_rewards, unbiased=False)
    theirs = of_trinity("rec", rows, std_normalize=scale_rewards == "group")
    agree(f"group, {scale_rewards}, not unbiased (rec)", "Trinity-RFT", given, theirs)


@every_case
def test_leave_one_out(case: Case) -> None:
    agree(
        "leave_one_out", "verl", ours("leave_one_out", compared(case)), of_verl("rloo", compared(case))[:, 0]
    )
    rows = all_rows(case)
    agree(
        "leave_one_out, groups of one",
        "verl",
        ours("leave_one_out", rows),
        of_verl("rloo_vectorized", rows)[:, 0],
    )


@every_case
def test_reward(case: Case) -> None:
    rows = all_rows(case)
    given = torch.from_numpy(advantages.reward(rows.rewards.numpy()))
    agree("reward", "Trinity-RFT", given, of_trinity("reinforce", rows))


@every_case
@pytest.mark.parametrize("baseline", ["mean", "logavgexp"])
@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_opmd(case: Case, baseline: str, temperature: float) -> None:
    rows = compared(case)
    given = ours("opmd", rows, baseline=baseline, temperature=temperature)
    theirs = of_trinity("opmd", rows, opmd_baseline=baseline, tau=temperature)
    agree(f"opmd, {baseline}", "Trinity-RFT", given, theirs)


@every_case
@pytest.mark.parametrize("baseline_shift", [-0.1, 0.4])
def test_asymre(case: Case, baseline_shift: float) -> None:
    rows = compared(case)
    given = ours("asymre", rows, baseline_shift=baseline_shift)
    agree("asymre", "Trinity-RFT", given, of_trinity("asymre", rows, baseline_shift=baseline_shift))


@every_case
def test_reinforce_plus_plus(case: Case) -> None:
    rows = all_rows(case)
    given = whitened(rows, repeated(rows, rows.rewards))
    theirs = of_verl("reinforce_plus_plus", rows, config=AlgoConfig(gamma=1.0))
    agree("reward, whiten", "verl", given, theirs)


@every_case
def test_reinforce_plus_plus_with_penalties_in_the_reward(case: Case) -> None:
    rows = all_rows(case)
    penalties = [row[mask].numpy() for row, mask in zip(rows.penalties, rows.mask, strict=True)]
    given = whitened(rows, map(advantages.returns_to_go, rows.rewards.tolist(), penalties))
    theirs = of_verl("reinforce_plus_plus", rows, penalised=True, config=AlgoConfig(gamma=1.0))
    agree("returns_to_go, whiten", "verl", given, theirs)


@every_case
def test_reinforce_plus_plus_with_a_baseline(case: Case) -> None:
    rows = compared(case)
    given = whitened(rows, repeated(rows, ours("group", rows, scale_rewards="none")))
    agree("group, none, whiten", "verl", given, of_verl("reinforce_plus_plus_baseline", rows))


@dataclass(frozen=True)
class Attempts:
    """Rows that are steps of attempts, none alone in its group."""

    rewards: list[float]
    groups: list[int]
    rollouts: list[int]
    steps: list[int]
    states: list[int]

    def columns(self, *names: str) -> list[Any]:
        return [getattr(self, name) for name in names]


def attempts(seed: int) -> Attempts:
    """Three groups of two to four attempts, of one to five steps, in three states."""
    rng = np.random.default_rng(seed)
    shape = [
        (of, rollout, step)
        for of in range(3)
        for rollout in range(of + 2)
        for step in range(rng.integers(1, 6))
    ]
    return Attempts(
        rng.normal(size=len(shape)).tolist(),
        [of for of, _, _ in shape],
        [10 * of + rollout for of, rollout, _ in shape],
        [step for _, _, step in shape],
        rng.integers(0, 3, len(shape)).tolist(),
    )


def of_trinity_in_steps(name: str, rows: Attempts, **options: Any) -> Tensor:
    """[n]"""
    experiences = [
        Experience(
            eid=EID(task=of, run=rollout, step=step),
            tokens=torch.zeros(2, dtype=torch.int64),
            prompt_length=1,
            logprobs=torch.zeros(1),
            reward=reward,
            info={"step_reward": reward, "env_state_hash": f"{of} {state}"},
        )
        for reward, of, rollout, step, state in zip(
            *rows.columns("rewards", "groups", "rollouts", "steps", "states"), strict=True
        )
    ]
    ADVANTAGE_FN.get(name)(**options).process(experiences)
    return torch.stack([experience.advantages[0] for experience in experiences]).double()


every_seed = pytest.mark.parametrize("seed", range(6))


@every_seed
@pytest.mark.parametrize("scale_rewards", ["group", "batch"])
@pytest.mark.parametrize("step_norm", [False, True])
def test_multi_step_group(seed: int, scale_rewards: Any, step_norm: bool) -> None:
    rows = attempts(seed)
    given = advantages.multi_step_group(
        *rows.columns("rewards", "groups", "rollouts", "steps"),
        scale_rewards=scale_rewards,
        step_norm=step_norm,
    )
    options = {"std_cal_level": scale_rewards, "enable_step_norm": step_norm}
    theirs = of_trinity_in_steps("step_wise_grpo", rows, **options)
    agree(f"multi_step_group, {scale_rewards}", "Trinity-RFT", torch.from_numpy(given), theirs)


@every_seed
@pytest.mark.parametrize("scale_rewards", ["group", "none"])
@pytest.mark.parametrize(("omega", "gamma"), [(1.0, 0.95), (0.5, 1.0)])
def test_gigpo(seed: int, scale_rewards: Any, omega: float, gamma: float) -> None:
    rows = attempts(seed)
    columns = *rows.columns("rewards", "groups", "rollouts", "steps", "states"), [False] * len(rows.rewards)
    given = advantages.gigpo(*columns, scale_rewards=scale_rewards, omega=omega, gamma=gamma)
    # It divides by 1 + epsilon where it does not scale.
    scale = {"fnorm": "std"} if scale_rewards == "group" else {"fnorm": "none", "epsilon": 0.0}
    theirs = of_trinity_in_steps("gigpo", rows, omega=omega, gamma=gamma, **scale)
    agree(f"gigpo, {scale_rewards}", "Trinity-RFT", torch.from_numpy(given), theirs)


@every_case
def test_remax(case: Case) -> None:
    rows = all_rows(case)
    greedy = [place == rows.groups.index(of) for place, of in enumerate(rows.groups)]
    one = [0] * len(greedy)
    given = advantages.remax(rows.rewards.numpy(), rows.groups, rows.places, one, greedy)
    baselines = rows.rewards[[rows.groups.index(of) for of in rows.groups]]
    per_token = torch.zeros_like(rows.penalties)
    per_token[range(len(one)), [length - 1 for length in rows.lengths]] = rows.rewards
    theirs, _ = core_algos.compute_remax_outcome_advantage(per_token, baselines, rows.mask.double())
    agree("remax", "verl", torch.from_numpy(given), theirs[:, 0])


def penalties(lengths: list[int]) -> Tensor:
    """[n] Ours of responses of these lengths."""
    return torch.tensor(
        [rewards.overlong_penalty(length, **SHAPING) for length in lengths], dtype=torch.float64
    )


def test_overlong_penalty_up_to_the_longest_response() -> None:
    lengths = list(range(1, MAX_LENGTH + 1))
    shape = (len(lengths), MAX_LENGTH)
    manager = DAPORewardManager(
        SimpleNamespace(decode=lambda *args, **options: "", eos_token="</s>"),
        num_examine=0,
        compute_score=lambda **known: 0.0,
        max_resp_len=MAX_LENGTH,
        overlong_buffer_cfg=SimpleNamespace(enable=True, len=BUFFER, penalty_factor=1.0, log=False),
    )
    given = torch.arange(MAX_LENGTH) < torch.tensor(lengths)[:, None]
    data = DataProto.from_dict(
        tensors={
            "prompts": torch.zeros(len(lengths), 1, dtype=torch.int64),
            "responses": torch.zeros(shape, dtype=torch.int64),
            "attention_mask": torch.cat([torch.ones(len(lengths), 1), given], dim=1).long(),
        },
        non_tensors={
            "reward_model": np.array([{"ground_truth": ""}] * len(lengths), dtype=object),
            "data_source": np.array([""] * len(lengths), dtype=object),
        },
    )
    theirs = manager(data).sum(dim=1).double()
    agree("overlong_penalty", "verl", penalties(lengths), theirs)


def test_overlong_penalty_beyond_the_longest_response(monkeypatch: pytest.MonkeyPatch) -> None:
    # What judges the answer imports parsers of LaTeX, which have no part in this.
    judge = ModuleType("trinity.common.rewards.naive_dapo_score")
    monkeypatch.setattr(judge, "compute_score", None, raising=False)
    monkeypatch.setitem(sys.modules, judge.__name__, judge)
    from trinity.common.rewards.dapo_reward import MathDAPORewardFn

    shaping = MathDAPORewardFn(True, penalty_factor=1.0, max_response_length=MAX_LENGTH, cache_length=BUFFER)
    lengths = list(range(1, 2 * MAX_LENGTH))
    theirs = [shaping.compute_overlong_penalty(torch.zeros(length)) for length in lengths]
    agree("overlong_penalty", "Trinity-RFT", penalties(lengths), torch.tensor(theirs, dtype=torch.float64))
