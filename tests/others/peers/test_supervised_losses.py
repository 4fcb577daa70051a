"""Losses of demonstrated tokens against TRL, verl and Trinity-RFT: means over all tokens."""

from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from torch import Tensor
from trinity.algorithm.policy_loss_fn import POLICY_LOSS_FN
from trl import SFTTrainer
from verl.utils.dataset.dataset_utils import DatasetPadMode
from verl.workers.utils import losses as verl

from tests.others.peers.cases import Case, agree, every_case
from trinity_db.trainer.recipes.parts.supervised_losses import dft, nll, phi


def mean(values: Tensor, case: Case) -> Tensor:
    return values[case.mask].mean()


def trl_sft(case: Case, loss_type: str) -> Tensor:
    accelerator = SimpleNamespace(
        gather_for_metrics=lambda value: value, parallelism_config=None, num_processes=1
    )
    trainer = SimpleNamespace(
        accelerator=accelerator,
        model=SimpleNamespace(training=True),
        aux_loss_enabled=False,
        compute_loss_func=None,
        label_smoother=None,
        args=SimpleNamespace(loss_type=loss_type, average_tokens_across_devices=False),
        _metrics={"train": defaultdict(list)},
        _total_train_tokens=0,
        _tp_size=1,
    )
    outputs = SimpleNamespace(
        log_probs=case.logprobs * case.mask, label_mask=case.mask, entropy=case.old, is_top1=case.mask
    )
    inputs = {"labels": case.mask, "attention_mask": case.mask}
    loss: Tensor = SFTTrainer.compute_loss(trainer, lambda **_: outputs, inputs)
    return loss


@every_case
def test_nll_is_that_of_trl(case: Case) -> None:
    agree("supervised nll", "TRL", mean(nll(case.logprobs), case), trl_sft(case, "nll"), case.logprobs)


@every_case
def test_dft_is_that_of_trl(case: Case) -> None:
    mine = mean(dft(case.logprobs, case.mask), case)
    agree("supervised dft", "TRL", mine, trl_sft(case, "dft"), case.logprobs)


@every_case
def test_nll_is_that_of_trinity(case: Case) -> None:
    theirs = POLICY_LOSS_FN.get("sft")(backend="tinker")(logprob=case.logprobs, action_mask=case.mask)[0]
    agree("supervised nll", "Trinity-RFT", mean(nll(case.logprobs), case), theirs, case.logprobs)


@every_case
@pytest.mark.parametrize(("ours", "peer"), [(dft, "sft_is"), (phi, "sft_phi")])
def test_losses_weighed_by_probability_are_those_of_trinity(
    case: Case, ours: Callable[[Tensor, Tensor], Tensor], peer: str
) -> None:
    theirs = POLICY_LOSS_FN.get(peer)(backend="tinker")(logprob=case.logprobs, action_mask=case.mask)[0]
    mine = mean(ours(case.logprobs, case.mask), case)
    agree(f"supervised {ours.__name__}", "Trinity-RFT", mine, theirs, case.logprobs)


@every_case
def test_nll_is_that_of_verl(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verl.tu, "get_non_tensor_data", lambda **_: DatasetPadMode.RIGHT)
    data = {"dp_size": 1, "batch_num_tokens": case.mask.sum(), "response_mask": case.mask}
    theirs = verl.sft_loss(None, {"log_probs": case.logprobs}, data)[0]
    agree("supervised nll", "verl", mean(nll(case.logprobs), case), theirs, case.logprobs)
