"""Hugging Face's ``Trainer`` in a collective job, with the real library and a tiny random model."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"

from tqdm import tqdm
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.training.frameworks.hugging_face import make_elastic
from edl_workflows.training.options import TrainingOptions
from tests.torch.alone import JobAlone, break_steps
from tests.torch.together import DIES, JOINS, members, train_together

tqdm.monitor_interval = 0  # a thread that would outlive its test
TEXTS, LENGTH, TOKENS = 50, 8, 32
BATCH, MOST = 2, 3


class Texts(torch.utils.data.Dataset):  # type: ignore[misc]  # no types in the environment of the checks
    """Random tokens; the first of each text are not trained, so that batches differ in their labels."""

    def __len__(self) -> int:
        return TEXTS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if index >= TEXTS:
            raise IndexError(index)
        tokens = torch.randint(TOKENS, (LENGTH,), generator=torch.Generator().manual_seed(index))
        labels = tokens.clone()
        labels[: index % 5] = -100
        return {"input_ids": tokens, "labels": labels}


def network() -> GPT2LMHeadModel:
    """A GPT-2 without dropout."""
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": LENGTH, "vocab_size": TOKENS}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, bos_token_id=0, eos_token_id=0))


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    """Settings of a short training on the CPU."""
    settings = {
        "output_dir": str(folder / "trainer"),
        "per_device_train_batch_size": BATCH,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "warmup_steps": 3,
        "max_grad_norm": 0.5,
        "train_sampling_strategy": "sequential",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return TrainingArguments(**{**settings, **more})


def elastic(folder: Path, job: JobAlone, callbacks: Sequence[TrainerCallback] = (), **more: Any) -> Trainer:
    """A ``Trainer`` of this job."""
    data = {"train_dataset": Texts(), "eval_dataset": Texts()}
    trainer = Trainer(model=network(), args=arguments(folder, **more), callbacks=list(callbacks), **data)
    make_elastic(trainer, job.as_job, TrainingOptions(folder / "checkpoints", save_seconds=None))
    return trainer


def logged(trainer: Trainer, name: str) -> list[float]:
    """The values of a logged metric."""
    return [one[name] for one in trainer.state.log_history if name in one]


def test_the_training_is_that_of_the_trainer_itself(tmp_path: Path) -> None:
    """Losses, gradient norms, learning rates and the final model equal those of a plain ``Trainer`` that
    accumulates as many batches as the job has members at most."""
    plain = Trainer(
        model=network(),
        args=arguments(tmp_path, gradient_accumulation_steps=MOST),
        train_dataset=Texts(),
    )
    plain.train()
    job = JobAlone(MOST)
    trainer = elastic(tmp_path, job)
    result = trainer.train()

    for name in ("loss", "grad_norm", "learning_rate", "epoch"):
        assert logged(trainer, name) == pytest.approx(logged(plain, name), abs=1e-5), name
    assert result.global_step == plain.state.global_step == len(job.steps)
    assert job.losses == pytest.approx(logged(plain, "loss")[: len(job.steps)], abs=1e-5)
    assert job.steps[-1][2] == job.expected == 2 * TEXTS, "each record twice, as the job's status expects"
    ends = [one.evaluate(Texts())["eval_loss"] for one in (trainer, plain)]
    assert ends[0] == pytest.approx(ends[1], abs=1e-5)
    assert set(job.metrics) == {"grad_norm", "learning_rate", "train_loss"}


def test_it_goes_on_from_the_jobs_checkpoint(tmp_path: Path) -> None:
    """A process that is told to exit in the second epoch saves, and exits with 143. The next one makes the
    remaining steps from that position, and has the log and the evaluations of before."""
    straight = JobAlone(MOST)
    whole = elastic(tmp_path / "straight", straight, eval_strategy="epoch")
    whole.train()
    first = JobAlone(MOST, leave_at=12)
    with pytest.raises(SystemExit) as ended:
        elastic(tmp_path, first, eval_strategy="epoch").train()
    second = JobAlone(MOST)
    trainer = elastic(tmp_path, second, eval_strategy="epoch")
    trainer.train()

    assert ended.value.code == 143
    assert first.steps[-1][0] + 1 == second.steps[0][0]
    assert first.losses + second.losses == pytest.approx(straight.losses, abs=1e-5)
    assert second.steps[-1] == pytest.approx(straight.steps[-1], abs=1e-5)
    for name in ("loss", "learning_rate", "epoch", "eval_loss"):
        assert logged(trainer, name) == pytest.approx(logged(whole, name), abs=1e-5), name


def test_a_job_that_was_trained_ends_at_once(tmp_path: Path) -> None:
    """A job that is started again after its last step makes no further one."""
    first = JobAlone(MOST)
    elastic(tmp_path, first, max_steps=7).train()
    assert first.expected == first.steps[-1][2], "the percentage ends at 100"
    again = JobAlone(MOST)
    result = elastic(tmp_path, again, max_steps=7).train()

    assert again.steps == []
    assert result.global_step == 7


def test_callbacks_continue(tmp_path: Path) -> None:
    """After a restart, early stopping continues with its counters."""
    settings = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "learning_rate": 0.0,  # never gets better
        "save_steps": 2,
        "save_strategy": "steps",
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
    }
    with pytest.raises(SystemExit):
        elastic(tmp_path, JobAlone(MOST, leave_at=6), [EarlyStoppingCallback(3)], **settings).train()
    job = JobAlone(MOST)
    elastic(tmp_path, job, [EarlyStoppingCallback(3)], **settings).train()

    assert [step for step, *_ in job.steps] == [8], "not better at steps 4, 6 and 8"


def test_steps_during_which_members_are_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that no member completed is repeated. A step that only another member completed is not: the
    ``Trainer`` counts it and continues from the received state. The result equals that without losses."""
    whole = elastic(tmp_path / "whole", JobAlone(MOST))
    whole.train()
    break_steps(monkeypatch, repeated={3, 9}, received={5, 9, 18})
    job = JobAlone(MOST)
    trainer = elastic(tmp_path / "broken", job)
    result = trainer.train()

    assert result.global_step == 18
    assert [step for step, *_ in job.steps] == [step for step in range(1, 19) if step not in (5, 9, 18)]
    assert logged(trainer, "learning_rate") == pytest.approx(logged(whole, "learning_rate"), abs=1e-9)
    ends = [one.evaluate()["eval_loss"] for one in (trainer, whole)]
    assert ends[0] == pytest.approx(ends[1], abs=1e-9)


def test_a_member_joins_and_another_one_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``Trainer`` joins another one that trains, gets its model, position and log, and continues alone when
    the other one dies. Each step has the loss of an undisturbed training."""
    alone = JobAlone(MOST)
    elastic(tmp_path / "alone", alone).train()
    jobs = members(MOST)
    trainers = [elastic(tmp_path / "together", job) for job in jobs]
    train_together(monkeypatch, [trainer.train for trainer in trainers])
    first, second = jobs

    assert [step for step, *_ in first.steps] == list(range(1, DIES + 1))
    assert [step for step, *_ in second.steps] == list(range(JOINS + 2, len(alone.steps) + 1))
    for job in jobs:
        expected = alone.losses[job.steps[0][0] - 1 : job.steps[-1][0]]
        assert job.losses == pytest.approx(expected, abs=1e-5)
    assert second.steps[-1][2] == 2 * TEXTS
    assert logged(trainers[1], "loss") == pytest.approx(alone.losses, abs=1e-5)
    assert trainers[1].is_world_process_zero()


def test_micro_batches_change_nothing(tmp_path: Path) -> None:
    """A member's part of a step gives the same losses in one batch and accumulated from smaller ones."""
    one, two = JobAlone(MOST), JobAlone(MOST)
    elastic(tmp_path / "one", one, per_device_train_batch_size=4).train()
    elastic(tmp_path / "two", two, per_device_train_batch_size=2, gradient_accumulation_steps=2).train()

    assert one.losses == pytest.approx(two.losses, abs=1e-5)
    assert len(one.steps) < 2 * TEXTS / 4, "4 records for each of 3 members"


def test_shuffled_epochs_have_each_record_once(tmp_path: Path) -> None:
    """With a random order in each epoch and workers that read ahead, each epoch has each record once."""
    seen: list[list[int]] = []

    class Noted(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], **more: Any) -> Any:
            seen.append([hash(tuple(row.tolist())) for row in inputs["input_ids"]])
            return super().compute_loss(model, inputs, **more)

    settings = {"train_sampling_strategy": "random", "dataloader_num_workers": 1, "data_seed": 5}
    trainer = Noted(model=network(), args=arguments(tmp_path, **settings), train_dataset=Texts())
    make_elastic(trainer, JobAlone(MOST).as_job, TrainingOptions(tmp_path / "checkpoints"))
    trainer.train()
    rows = [row for batch in seen[1:] for row in batch]  # the first is the warm-up

    assert len(rows) == 2 * TEXTS
    assert sorted(rows[:TEXTS]) == sorted(rows[TEXTS:])
    assert rows[:TEXTS] != rows[TEXTS:]
    assert len(set(rows)) == TEXTS


class Endless(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Data without a length."""

    def __iter__(self) -> Any:
        return iter(Texts())


def test_what_it_can_not_do_is_refused(tmp_path: Path) -> None:
    """Each unsupported option is an error that names it."""
    options = TrainingOptions(tmp_path / "checkpoints")

    def refused(trainer: Trainer) -> str:
        make_elastic(trainer, JobAlone(MOST).as_job, options)
        with pytest.raises(InvalidError) as refusal:
            trainer.train()
        return str(refusal.value)

    endless = Trainer(network(), arguments(tmp_path, max_steps=3), train_dataset=Endless())
    assert "no length" in refused(endless)
    grouped = arguments(tmp_path, train_sampling_strategy="group_by_length")
    assert "LengthGroupedSampler" in refused(Trainer(network(), grouped, train_dataset=Texts()))
    plateau = arguments(tmp_path, lr_scheduler_type="reduce_lr_on_plateau", eval_strategy="epoch")
    trainer = Trainer(network(), plateau, train_dataset=Texts(), eval_dataset=Texts())
    assert "ReduceLROnPlateau" in refused(trainer)
    done = elastic(tmp_path / "done", JobAlone(MOST), max_steps=1)
    done.train()
    with pytest.raises(InvalidError, match="again"):
        done.train()
