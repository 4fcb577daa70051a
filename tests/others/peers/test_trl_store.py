"""The programs of docs/guides/trl.md, one of them killed and started again; and steps against TRL's own."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trl
import yaml
from datasets import Dataset
from torch import Tensor

import trinity_db
from tests.others.peers.steps import STEP_TOLERANCE, Models, moved, settings
from tests.support.documents import ROOT, of_page
from tests.support.postgres import execute
from tests.support.rows import Scene, rollout, with_step
from trinity_db.arrays.codec import Payload
from trinity_db.errors import ConfigError, TrinityError
from trinity_db.models import load_model
from trinity_db.postgres.connection import Database
from trinity_db.run import joining
from trinity_db.run.configuration import RunConfig
from trinity_db.schema.states import WorkerRole
from trinity_db.store import workers
from trinity_db.trl import StoreGRPOTrainer

PAGE = ROOT / "docs" / "guides" / "trl.md"
KILLER = ROOT / "tests" / "support" / "killed_loop.py"
STEPS, BATCH_SIZE, REWARDS = 6, 2, [1.0, 0.0, 0.5, 0.0]
KILLED, SAVED = 5, 4

LINEAGE = "SELECT count(*), count(DISTINCT experience_id) FROM trinity.lineage(%s, %s)"
BATCHES = "SELECT step, state::text, included_version FROM trinity.batch WHERE run_id = %s ORDER BY id"
NEWEST = """
SELECT version, checkpoint, resume_from FROM trinity.policy_version
WHERE run_id = %s ORDER BY version DESC LIMIT 1
"""
RUN = "SELECT state::text FROM trinity.run WHERE id = %s"

Open = Callable[..., Scene]


def block(name: str) -> str:
    """A file of the page."""
    (text,) = (block.text for block in of_page(PAGE) if block.file == name)
    return text


@pytest.fixture
def open_run(
    database_url: str, models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Open]:
    """Makes the run of the page, with workers that write and process its rollouts."""
    monkeypatch.setenv("TRINITY_DB_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TRINITY_DB_URL", database_url)
    config = yaml.safe_load(block("sums.yaml"))
    config |= {"model": {"path": str(models.start)}, "taskset": "tasks"}
    config |= {"max_staleness": None, "trainer": {"steps": STEPS, "batch_size": BATCH_SIZE}}

    with closing(Database(database_url)) as database:
        scene = Scene.open(database)

        def make(**content: Any) -> Scene:
            database, run = joining.open_run(RunConfig.model_validate(config | content))
            database.close()
            with scene.database.transaction() as tx:
                explorer = workers.register(tx, run, WorkerRole.EXPLORE)
                processor = workers.register(tx, run, WorkerRole.PROCESS)
            return replace(scene, run=run, explorer=explorer, processor=processor, trainer=0)

        yield make


def started(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a Python program to its end."""
    return subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.timeout(900)  # two programs load torch and TRL, on a busy machine
def test_a_killed_program_uses_each_row_once_and_ends_with_the_same_weights(
    open_run: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, script = open_run(), tmp_path / "train_trl.py"
    run.make_ready(STEPS * BATCH_SIZE, REWARDS)
    script.write_text(block(script.name))
    died = started(tmp_path, KILLER, script, "before", str(KILLED))
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert run.rows(BATCHES, run.run.id)[-1] == (KILLED, "leased", None)
    # Otherwise the next trainer waits until the dead one is silent for long enough.
    execute(run.database.url, "UPDATE trinity.worker SET stopped_at = now() WHERE role = 'train'")
    ended = started(tmp_path, script)
    assert ended.returncode == 0, ended.stderr

    assert run.rows(BATCHES, run.run.id) == [
        *[(step, "committed", step) for step in range(1, KILLED)],
        (KILLED, "reopened", None),
        *[(step, "committed", step) for step in range(KILLED, STEPS + 1)],
    ]
    [(version, folder, resumed)] = run.rows(NEWEST, run.run.id)
    used = STEPS * BATCH_SIZE * len(REWARDS)
    assert run.rows(LINEAGE, version, run.run.name) == [(used, used)]
    assert run.value(RUN, run.run.id) == "finished"
    assert not list((tmp_path / "output").glob("checkpoint-*")), "checkpoints are in the store's folder only"
    optimizer = torch.load(Path(resumed) / "optimizer.pt")
    assert {int(state["step"]) for state in optimizer["state"].values()} == {STEPS}

    calm = open_run(name="calm")
    calm.make_ready(STEPS * BATCH_SIZE, REWARDS)
    monkeypatch.chdir(tmp_path)
    exec(block(script.name).replace('store.trainer("sums")', 'store.trainer("calm")'), {})
    [(_, other, _)] = calm.rows(NEWEST, calm.run.id)
    weights, others = (load_model(Path(path), "cpu").state_dict() for path in (folder, other))
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def old_rows(scene: Scene, number: int) -> dict[str, Tensor]:
    """Write rollouts of several turns that an older policy sampled. As TRL would hold them."""
    generator = np.random.default_rng(0)
    [group] = scene.claim(1, group_size=number)
    members, prompts, completions, masks, logprobs = [], [], [], [], []
    for member in range(number):
        prompt, length = 1 + int(generator.integers(4)), 3 + int(generator.integers(8))
        tokens = generator.integers(10, size=prompt + length).astype(np.int32)
        mask = np.r_[np.zeros(prompt), 1, generator.integers(2, size=length - 1)].astype(np.bool_)
        sampled = generator.uniform(-4, -1, int(mask.sum())).astype(np.float32)
        payload = Payload(tokens, mask, sampled, np.zeros(len(sampled), np.int32))
        members.append(with_step(rollout(group, member, str(member % 3)), payload=payload))
        prompts.append(torch.tensor(tokens[:prompt]))
        completions.append(torch.tensor(tokens[prompt:]))
        masks.append(torch.tensor(mask[prompt:]).long())
        logprobs.append(torch.zeros(length).masked_scatter(masks[-1].bool(), torch.tensor(sampled)))
    scene.write(members)
    scene.process()
    rewards = np.arange(number) % 3
    advantages = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)

    def padded(rows: list[Tensor], side: str = "right") -> Tensor:
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_side=side)

    return {
        "prompt_ids": padded(prompts, "left").long(),
        "prompt_mask": padded([torch.ones_like(ids) for ids in prompts], "left").long(),
        "completion_ids": padded(completions).long(),
        "completion_mask": padded([torch.ones_like(ids) for ids in completions]).long(),
        "tool_mask": padded(masks),
        "advantages": torch.tensor(advantages).float(),
        "old_per_token_logps": padded(logprobs),
        "num_items_in_batch": torch.cat(masks).sum(),
    }


class Plain(trl.GRPOTrainer):  # type: ignore[misc]  # trl is in .venv-peers only
    """TRL's trainer, which gets these tensors instead of sampling."""

    tensors: dict[str, Tensor]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Tensor]:
        if self.beta:
            width = self.tensors["completion_ids"].shape[1]
            joined = [
                torch.cat([self.tensors[f"prompt_{part}"], self.tensors[f"completion_{part}"]], 1)
                for part in ("ids", "mask")
            ]
            with torch.no_grad():
                reference, *_ = self._get_per_token_logps_and_entropies(self.ref_model, *joined, width)
            return self.tensors | {"ref_per_token_logps": reference}
        return self.tensors


@pytest.mark.parametrize(
    ("rows", "number", "options"),
    [
        (8, 2, {"loss_type": "grpo"}),
        (8, 2, {"loss_type": "dapo", "epsilon_high": 0.28, "beta": 0.2}),
        (7, 1, {"loss_type": "dapo"}),  # in two micro-batches of four, of which one row is a filling
    ],
)
def test_a_step_is_that_of_trl_on_the_same_tensors(
    open_run: Open, models: Models, tmp_path: Path, rows: int, number: int, options: dict[str, Any]
) -> None:
    run = open_run(trainer={"steps": 1, "batch_size": 1}, explorer={"group_size": rows})
    tensors = old_rows(run, rows)
    plain = {"num_generations": rows, "save_strategy": "steps"} | options
    more = {"per_device_train_batch_size": rows // number, "gradient_accumulation_steps": number}
    theirs = Plain(
        str(models.start),
        lambda prompts, **_: [0.0] * len(prompts),
        args=trl.GRPOConfig(**settings(tmp_path / "theirs", **plain, **more)),
        train_dataset=Dataset.from_dict({"prompt": ["1"] * rows}),
    )
    theirs.tensors = tensors
    theirs.train()
    args = settings(tmp_path / "ours", **plain | {"num_generations": 4}, per_device_train_batch_size=4)
    with trinity_db.connect(read_only=False) as store, store.trainer("sums") as trainer:
        ours = StoreGRPOTrainer(trainer, trl.GRPOConfig(**args))
        ours.train()
    start = load_model(models.start, "cpu")
    changes = [moved(side.model.parameters(), start.parameters()) for side in (ours, theirs)]
    assert changes[1].abs().max() > 1e-2
    assert (changes[0] - changes[1]).abs().max() < STEP_TOLERANCE
    losses = [side.state.log_history[0]["loss"] for side in (ours, theirs)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    loss = "SELECT value FROM trinity.metric WHERE run_id = %s AND name = 'loss'"
    assert run.values(loss, run.run.id) == pytest.approx([losses[1]], abs=1e-5)


def test_what_does_not_fit_a_run_is_refused_and_its_rows_are_given_back(
    open_run: Open, tmp_path: Path
) -> None:
    run = open_run()
    run.make_ready(2, REWARDS)
    with trinity_db.connect(read_only=False) as store, store.trainer("sums") as trainer:
        with pytest.raises(ConfigError, match=r"num_iterations: 2 does not fit .* leave it out"):
            StoreGRPOTrainer(
                trainer, trl.GRPOConfig(**settings(tmp_path, num_generations=4, num_iterations=2))
            )
        for options, message in (
            ({"per_device_train_batch_size": 2}, "has 8 rows, .* 2 times .* 2 is 4: make one of them larger"),
            (
                {"per_device_train_batch_size": 4, "temperature": 0.5},
                "sampled at temperature 1, and TRL .* 0.5",
            ),
        ):
            args = trl.GRPOConfig(**settings(tmp_path, num_generations=4, **options))
            with pytest.raises(TrinityError, match=message):
                StoreGRPOTrainer(trainer, args).train()
    assert [state for _, state, _ in run.rows(BATCHES, run.run.id)] == ["reopened", "reopened"]


def test_queries_are_data_sets_of_trls_trainers(open_run: Open, models: Models, tmp_path: Path) -> None:
    run = open_run()
    with trinity_db.connect(read_only=False) as store:
        store.import_tasks([{"prompt": "12", "answer": "1"}, {"prompt": "34", "answer": "0"}], name="sums")
    claimed = run.claim(4, group_size=2)
    run.write(
        [
            with_step(rollout(group, member, str(1 - member)), prompt="12")
            for group in claimed
            for member in group.members
        ]
    )
    run.process()
    rows: dict[str, Any] = {}
    exec(block("rows_for_trl.py"), rows)
    tiny = settings(tmp_path)
    for kind, config, name, number in (
        (trl.SFTTrainer, trl.SFTConfig(**tiny), "for_sft", 4),
        (trl.SFTTrainer, trl.SFTConfig(**tiny), "for_sft_by_tokens", 4),
        (trl.DPOTrainer, trl.DPOConfig(**tiny), "for_dpo", 4),
        (trl.KTOTrainer, trl.KTOConfig(**tiny), "for_kto", 8),
    ):
        assert len(rows[name]) == number, name
        trainer = kind(str(models.start), args=config, train_dataset=rows[name])
        trainer.train()
        assert trainer.state.global_step == 1, name
    assert rows["for_grpo"].to_list() == [{"prompt": "12", "answer": "1"}, {"prompt": "34", "answer": "0"}]
