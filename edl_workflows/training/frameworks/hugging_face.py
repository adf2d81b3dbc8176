"""Hugging Face's ``Trainer`` in a collective job: training continues when members join, leave or die.

::

    job = connect()                       # first, before TrainingArguments
    ...
    trainer = Trainer(model, arguments, train_dataset=..., data_collator=...)
    make_elastic(trainer, job, TrainingOptions(checkpoint_dir))
    trainer.train()

Each pod runs one process, whose ``Trainer`` behaves as if it were alone. Where it would compute a batch and
step its optimizer, the members of the job make one step together
(`edl_workflows.training.frameworks.trainer_loop`). The step uses the ``Trainer``'s own ``compute_loss``,
gradient clipping, optimizer and schedule, but covers the global batch of the job, whose size does not depend
on the number of members. Processes keep the model in memory when members change, as with
`edl_workflows.training.frameworks.torch_collective`.

The job saves model, optimizer, schedule, data position and the ``TrainerState``, and restores the newest
verified checkpoint. The checkpoints that the ``Trainer`` writes itself (``save_strategy``) are only exports.

A training loop of your own that uses ``Accelerator`` can't be driven this way; use
`edl_workflows.training.frameworks.torch_collective` for it.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from accelerate.utils import find_batch_size, send_to_device
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.training.frameworks.torch_collective import TorchModel
from edl_workflows.training.frameworks.trainer_loop import (
    SteppedByJob,
    TrainerLoop,
    connect,
    reported_metrics,
)
from edl_workflows.training.job import Job
from edl_workflows.training.options import TrainingOptions

__all__ = ["TrainingOptions", "connect", "make_elastic"]

_SAVED = (
    "log_history",
    "best_metric",
    "best_global_step",
    "best_model_checkpoint",
    "num_input_tokens_seen",
    "total_flos",
)
"""Fields of ``TrainerState`` that belong to the training as a whole, not to one start of the program."""


def make_elastic(trainer: Trainer, job: Job, options: TrainingOptions) -> None:
    """Make ``trainer.train()`` train with the job's other members. Call this once, before ``train()``.

    Args:
        trainer: a ``Trainer`` whose ``train_dataset`` has a length. With N members (``rendezvous.maxNodes``),
            each computes ``per_device_train_batch_size`` x ``gradient_accumulation_steps`` records per step;
            fewer members share the same total.
        job: from `connect`.
        options: where and how often the job saves checkpoints.

    Raises:
        InvalidError: the ``Trainer`` already belongs to a group, or uses several GPUs, float16 with a
            gradient scaler, or a sharded model.
    """
    _check(trainer)
    trainer.add_callback(ElasticCallback(trainer, job, options))


class ElasticCallback(TrainerCallback):  # type: ignore[misc]  # no types in the environment of the checks
    """Replaces the ``Trainer``'s steps by the job's steps. Created by `make_elastic`."""

    def __init__(self, trainer: Trainer, job: Job, options: TrainingOptions) -> None:
        self._trainer = trainer
        self._job = job
        self._options = options
        self._loop: TrainerLoop | None = None
        self._finished = False
        self._accumulate = trainer.args.gradient_accumulation_steps
        trainer.args.gradient_accumulation_steps = 1  # the job's step accumulates
        self._norm: torch.Tensor | None = None
        self._own_dataloader = trainer.get_train_dataloader
        trainer.get_train_dataloader = self._get_train_dataloader
        trainer.training_step = self._training_step
        trainer.floating_point_ops = lambda _inputs: 0  # the Trainer does not see the inputs
        # The Trainer asks for the norm after the job's update, when the gradients are already clipped.
        trainer._clip_grad_norm = lambda *_arguments: self._norm  # noqa: SLF001
        trainer._get_grad_norm = lambda *_arguments, **_more: self._norm  # noqa: SLF001

    def on_train_begin(
        self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_more: Any
    ) -> None:
        """Join the other members."""
        if state.global_step:
            raise InvalidError(
                "resume_from_checkpoint: the job itself continues from its newest checkpoint; leave it out"
            )
        trainer, run = self._trainer, self._joined.run
        self._joined.begin(state.max_steps)
        self._rates = trainer.lr_scheduler.get_last_lr()
        trainer.optimizer = SteppedByJob(trainer.optimizer)
        trainer.lr_scheduler = SteppedByJob(trainer.lr_scheduler)
        trainer.lr_scheduler.get_last_lr = lambda: self._rates  # rates of this step, not of the next
        state.global_step = run.global_step
        trainer._globalstep_last_logged = trainer._initial_global_step = run.global_step  # noqa: SLF001
        self._update_trainer(state)

    def on_step_end(
        self, _args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: Any
    ) -> None:
        """Let only rank 0 save."""
        state.epoch = self._joined.epochs_done
        control.should_save = control.should_save and self._joined.run.rank == 0

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_more: Any
    ) -> None:
        """If the epoch was trained before this process joined, prevent logging, evaluation and saving."""
        self.on_step_end(args, state, control)
        if self._steps.skipped:
            control.should_log = control.should_evaluate = control.should_save = False
            control.should_training_stop = False

    def on_log(
        self,
        _args: TrainingArguments,
        state: TrainerState,
        _control: TrainerControl,
        logs: Mapping[str, Any] | None = None,
        **_more: Any,
    ) -> None:
        """Report metrics to the job."""
        if self._joined.run.rank == 0 and not self._finished:
            self._job.report(state.global_step, reported_metrics(logs or {}))

    def on_train_end(
        self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_more: Any
    ) -> None:
        """Save, and finish together with the other members."""
        self._joined.finish()
        self._finished = True

    @property
    def _joined(self) -> TrainerLoop:
        assert self._loop is not None, "the Trainer has not asked for its training data"
        return self._loop

    def _get_train_dataloader(self) -> "_Steps":
        if self._finished:
            raise InvalidError("train() was called again: a job's training ends once")
        args = self._trainer.args
        seed = args.seed if args.data_seed is None else args.data_seed
        self._loop = TrainerLoop(
            self._job,
            self._build,
            self._own_dataloader(),
            batch_size=args.train_batch_size,
            accumulate=self._accumulate,
            seed=seed,
            options=self._options,
        )
        self._steps = _Steps(self._loop, self._trainer)
        return self._steps

    def _build(self) -> TorchModel:
        """The model, optimizer and schedule that the ``Trainer`` has prepared."""
        trainer = self._trainer
        if isinstance(trainer.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise InvalidError("ReduceLROnPlateau follows the evaluation; use a schedule of steps")
        trainer.model.train()
        optimizer, schedule = trainer.optimizer, trainer.lr_scheduler
        limit = trainer.args.max_grad_norm or float("inf")

        def update() -> None:
            self._norm = torch.nn.utils.clip_grad_norm_(trainer.model.parameters(), limit)
            self._rates = schedule.get_last_lr()
            optimizer.step()
            schedule.step()

        return TorchModel(
            model=trainer.model,
            optimizer=optimizer,
            losses=self._loss,
            example=self._joined.example(),
            update=update,
            more={"schedule": schedule, "trainer": _SavedState(trainer)},
        )

    def _loss(self, batch: Mapping[str, Any]) -> tuple[torch.Tensor, float | torch.Tensor]:
        """The mean loss of a batch, and over how many items it is the mean: over tokens with a label if the
        model counts them, which stay on the device, else over records."""
        trainer = self._trainer
        inputs = send_to_device(batch, trainer.args.device)
        items = trainer._get_num_items_in_batch([inputs], trainer.args.device)  # noqa: SLF001
        if items is not None:
            items = items.clamp(min=1)
        with trainer.compute_loss_context_manager():
            weight = items if items is not None else float(find_batch_size(inputs))
            loss = trainer.compute_loss(trainer.model_wrapped, inputs, num_items_in_batch=items)
        return loss, weight

    def _training_step(
        self, model: torch.nn.Module, _inputs: Mapping[str, Any], _num_items: Any = None
    ) -> torch.Tensor:
        """Replace ``Trainer.training_step``: make a step of all members, including the update."""
        state = self._trainer.state
        model.train()
        self._norm = None
        self._joined.advance(state.global_step)
        state.global_step = self._joined.run.global_step - 1  # the Trainer adds this step
        self._update_trainer(state)
        return torch.tensor(self._joined.run.loss, device=self._trainer.args.device)

    def _update_trainer(self, state: TrainerState) -> None:
        """Let only the process of rank 0 log and save, and tell the ``Trainer`` how far the job is."""
        rank = self._joined.run.rank
        self._trainer.args.distributed_state.process_index = rank
        state.is_world_process_zero = state.is_local_process_zero = rank == 0
        state.epoch = self._joined.epochs_done


class _Steps:
    """The ``Trainer``'s data loader: one empty batch for each step."""

    def __init__(self, loop: TrainerLoop, trainer: Trainer) -> None:
        self.dataset = loop.records
        self.skipped = False
        self._loop = loop
        self._trainer = trainer
        self._epoch = 0

    def __len__(self) -> int:
        return self._loop.steps_per_epoch

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next iteration, counted from 0."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Empty batches, one for each remaining step of the epoch."""
        state = self._trainer.state
        over = state.global_step >= state.max_steps
        steps = 0 if over else self._loop.steps_left(self._epoch)
        self.skipped = not steps and not over
        return itertools.repeat({}, steps)


class _SavedState:
    """The ``TrainerState`` and the state of its callbacks, such as the log, the best metric and the patience
    of early stopping. As a part of the job's state they are saved, and new members receive them."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, str]:
        """The state as JSON."""
        fields = {name: getattr(self._trainer.state, name) for name in _SAVED}
        callbacks = [callback.state()["attributes"] for callback in self._exported]
        return {"json": json.dumps([fields, callbacks], default=float)}

    def load_state_dict(self, saved: Mapping[str, str]) -> None:
        """Continue from a saved state."""
        fields, callbacks = json.loads(saved["json"])
        for name, value in fields.items():
            setattr(self._trainer.state, name, value)
        for callback, attributes in zip(self._exported, callbacks, strict=False):
            for name, value in attributes.items():
                setattr(callback, name, value)

    @property
    def _exported(self) -> list[ExportableState]:
        return [
            callback
            for callback in self._trainer.callback_handler.callbacks
            if isinstance(callback, ExportableState)
        ]


def _check(trainer: Trainer) -> None:
    args = trainer.args
    if args.world_size > 1:
        raise InvalidError(
            "the Trainer has formed a group of its own: call "
            "edl_workflows.training.frameworks.hugging_face.connect before TrainingArguments are made, and "
            "start one process per pod, without --nproc-per-node"
        )
    if args.n_gpu > 1:
        raise InvalidError(f"the Trainer sees {args.n_gpu} GPUs: give each pod one, and the job more workers")
    if args.fp16:
        raise InvalidError("fp16 needs a gradient scaler, which the job's step has not: use bf16")
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
        raise InvalidError("DeepSpeed and FSDP shard the model, but each member of the job holds all of it")
