"""Lightning in a collective job: training continues when members join, leave or die.

::

    job = connect()                       # first, before Trainer
    strategy = ElasticStrategy(job, TrainingOptions(checkpoint_dir))
    trainer = Trainer(strategy=strategy, max_epochs=10)
    trainer.fit(module, DataLoader(records, batch_size=32, shuffle=True))

Each pod runs one process, in which Lightning behaves as if it were alone. Where it would train a batch, the
members of the job make one step together (`edl_workflows.training.frameworks.trainer_loop`). The step uses
the module's ``training_step``, gradient clipping, optimizer and schedules, but covers the global batch of the
job, whose size does not depend on the number of members. Processes keep the model in memory when members
change, as with `edl_workflows.training.frameworks.torch_collective`.

The job saves module, optimizer, schedules, the callbacks' states and the data position, and restores the
newest verified checkpoint. The checkpoints of ``ModelCheckpoint`` are only exports, which rank 0 writes.
"""

import contextlib
import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import SingleDeviceStrategy
from lightning.pytorch.utilities.data import extract_batch_size
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

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

__all__ = ["ElasticStrategy", "TrainingOptions", "connect"]


class ElasticStrategy(SingleDeviceStrategy):  # type: ignore[misc]  # untyped for the checks
    """Trains with the job's other members.

    With N members (``rendezvous.maxNodes``), each computes ``batch_size`` x ``accumulate_grad_batches``
    records per step; fewer members share the same total.

    Args:
        job: from `connect`.
        options: where and how often the job saves checkpoints.
        device: device of the model; by default the pod's GPU if it has one, else the CPU.
        seed: seed for the order of the records.
    """

    strategy_name = "elastic"

    def __init__(self, job: Job, options: TrainingOptions, device: str = "", seed: int = 0) -> None:
        super().__init__(device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
        self._job = job
        self._options = options
        self._seed = seed
        self._loop: TrainerLoop | None = None
        self._more: tuple[Any, ...] = ()
        self._warms_up = False
        self._on_sigterm = signal.getsignal(signal.SIGTERM)

    @property
    def is_global_zero(self) -> bool:
        """Whether this process logs and saves."""
        return bool(self.global_rank == 0)

    def process_dataloader(self, dataloader: Any) -> Any:
        """Replace the training data by one empty batch for each step."""
        trainer = self._module.trainer
        if not trainer.training or trainer.state.fn != "fit":
            return dataloader
        self._check(trainer)
        accumulate, trainer.accumulate_grad_batches = trainer.accumulate_grad_batches, 1
        self._loop = TrainerLoop(
            self._job,
            self._build,
            dataloader,
            batch_size=dataloader.batch_size,
            accumulate=accumulate,
            seed=self._seed,
            options=self._options,
        )
        self._begin(trainer)
        return _Steps(self._loop)

    def training_step(self, *arguments: Any) -> torch.Tensor:
        """Make a step of all members, including the update."""
        trainer, run = self._module.trainer, self._joined.run
        self._more = arguments[1:]
        if self.is_global_zero and trainer.global_step % trainer.log_every_n_steps == 0:
            self._job.report(run.global_step, reported_metrics(trainer.callback_metrics))
        self._joined.advance(trainer.global_step)
        self._update_trainer(trainer, run.global_step - 1)  # Lightning adds this step
        return torch.tensor(run.loss, device=self.root_device)

    def backward(self, closure_loss: torch.Tensor, *_arguments: Any, **_more: Any) -> torch.Tensor:
        """Do nothing: the step has already computed the gradients."""
        return closure_loss

    def optimizer_step(
        self, _optimizer: torch.optim.Optimizer, closure: Callable[[], Any], *_arguments: Any, **_more: Any
    ) -> Any:
        """Only call the closure, which makes the step, including the update."""
        return closure()

    def on_train_end(self) -> None:
        """Save, and finish together with the other members."""
        trainer = self._module.trainer
        if self.is_global_zero:
            self._job.report(trainer.global_step, reported_metrics(trainer.callback_metrics))
        self._joined.finish()

    @property
    def _module(self) -> LightningModule:
        assert self.lightning_module is not None
        return self.lightning_module

    @property
    def _joined(self) -> TrainerLoop:
        assert self._loop is not None, "Lightning has not asked for the training data"
        return self._loop

    def _check(self, trainer: Trainer) -> None:
        if self._loop is not None:
            raise InvalidError(
                "fit() was called again, or reload_dataloaders_every_n_epochs is set: a job trains once"
            )
        if not self._module.automatic_optimization or len(self.optimizers) != 1:
            raise InvalidError("the job's step needs automatic optimization with one optimizer")
        if trainer.limit_train_batches != 1.0 or trainer.overfit_batches:
            raise InvalidError("limit_train_batches and overfit_batches: give a smaller data set instead")
        if getattr(self.precision_plugin, "scaler", None) is not None:
            raise InvalidError(
                "16-mixed needs a gradient scaler, which the job's step has not: use bf16-mixed"
            )
        if any(config.reduce_on_plateau for config in self.lr_scheduler_configs):
            raise InvalidError("ReduceLROnPlateau follows the validation; use a schedule of steps or epochs")
        if trainer.global_step:
            raise InvalidError("ckpt_path: the job itself continues from its newest checkpoint; leave it out")

    def _begin(self, trainer: Trainer) -> None:
        """Join the other members, and set Lightning's counters to their progress."""
        if threading.current_thread() is threading.main_thread():  # elsewhere Lightning sets no handlers
            signal.signal(signal.SIGTERM, self._on_sigterm)  # Lightning's would end the process in mid-step
        self._warms_up = True
        with _without_logging(self._module):
            self._joined.begin(self._steps_of_all_epochs(trainer))
        self._warms_up = False
        for config in self.lr_scheduler_configs:
            config.scheduler = SteppedByJob(config.scheduler)
        loops, loop = trainer.fit_loop, self._joined
        epoch = int(loop.epochs_done)
        _set_progress(loops.epoch_progress, epoch, epoch)
        begun = loop.steps_per_epoch - loop.steps_left(epoch)
        _set_progress(loops.epoch_loop.batch_progress, begun, loop.run.global_step)
        loops.epoch_loop._batches_that_stepped = loop.run.global_step  # noqa: SLF001 - the loggers' step
        loops.epoch_loop.restarting = begun > 0  # in the middle of an epoch
        self._update_trainer(trainer, loop.run.global_step)

    def _steps_of_all_epochs(self, trainer: Trainer) -> int:
        limits = ((trainer.max_epochs or 0) * self._joined.steps_per_epoch, trainer.max_steps)
        return min((limit for limit in limits if limit > 0), default=0)

    def _build(self) -> TorchModel:
        """The module, optimizer and schedules that Lightning has set up."""
        module, optimizer = self._module, self.optimizers[0]
        trainer = module.trainer
        module.train()
        schedules = {
            f"schedule-{index}": config.scheduler for index, config in enumerate(self.lr_scheduler_configs)
        }
        return TorchModel(
            model=module,
            optimizer=optimizer,
            losses=self._loss,
            example=self._joined.example(),
            update=self._updating(
                trainer, [(config, config.scheduler) for config in self.lr_scheduler_configs]
            ),
            more={**schedules, "callbacks": _Callbacks(trainer)},
        )

    def _loss(self, batch: Any) -> tuple[torch.Tensor, float]:
        """The mean loss of a batch, and the number of its records."""
        module = self._module
        batch = self.precision_plugin.convert_input(batch)
        batch = self.batch_to_device(batch)
        records = extract_batch_size(batch)
        if not self._warms_up:
            module.trainer._results.batch = batch  # noqa: SLF001 - `log` takes the batch size from it
        indexed = is_param_in_hook_signature(module.training_step, "batch_idx", min_args=2)
        more = ((0,) if indexed else ()) if self._warms_up else self._more
        output = super().training_step(batch, *more)
        loss = output["loss"] if isinstance(output, Mapping) else output
        if not isinstance(loss, torch.Tensor):
            raise InvalidError("training_step must return the loss: the job's step can't leave a batch out")
        return loss, float(records)

    def _updating(self, trainer: Trainer, schedules: list[tuple[Any, Any]]) -> Callable[[], None]:
        """A function that makes the update and calls Lightning's hooks."""
        module, optimizer = self._module, self.optimizers[0]

        def update() -> None:
            if not self._warms_up:
                for callback in trainer.callbacks:
                    callback.on_before_optimizer_step(trainer, module, optimizer)
                module.on_before_optimizer_step(optimizer)
            clip, algorithm = trainer.gradient_clip_val, trainer.gradient_clip_algorithm
            module.configure_gradient_clipping(optimizer, clip, algorithm)
            optimizer.step()
            epoch = int(self._joined.epochs_done)
            left = self._joined.steps_left(epoch) - 1
            step = self._joined.steps_per_epoch - left
            for config, schedule in schedules:
                count = step if config.interval == "step" else epoch + 1
                if count % config.frequency == 0 and (config.interval == "step" or not left):
                    module.lr_scheduler_step(schedule, None)

        return update

    def _update_trainer(self, trainer: Trainer, step: int) -> None:
        """Let only the process of rank 0 log and save, and tell Lightning how far the job is."""
        self.global_rank = rank_zero_only.rank = self._joined.run.rank
        done = trainer.fit_loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total
        done.completed = step
        done.ready = max(done.ready, step)


class _Steps:
    """The training data as Lightning sees it: one empty batch for each step."""

    def __init__(self, loop: TrainerLoop) -> None:
        self._loop = loop

    def __len__(self) -> int:
        return self._loop.steps_per_epoch

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Empty batches, one for each remaining step of the present epoch."""
        return itertools.repeat({}, self._loop.steps_left(int(self._loop.epochs_done)))

    def state_dict(self) -> dict[str, Any]:
        """An empty state: the job keeps the position."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Do nothing."""


class _Callbacks:
    """The states of the trainer's callbacks, such as the patience of early stopping, as part of the job's
    state."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """The states by the callbacks' keys."""
        return {callback.state_key: callback.state_dict() for callback in self._trainer.callbacks}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore the callbacks' states. States of callbacks that this program does not have are ignored."""
        for callback in self._trainer.callbacks:
            if saved.get(callback.state_key):
                callback.load_state_dict(dict(saved[callback.state_key]))


def _set_progress(progress: Any, current: int, total: int) -> None:
    """Set a progress counter of Lightning's loops, as restoring one of its checkpoints would."""
    for name in ("ready", "started", "processed", "completed"):
        setattr(progress.current, name, current)
        setattr(progress.total, name, total)


@contextlib.contextmanager
def _without_logging(module: LightningModule) -> Iterator[None]:
    """A context in which everything that the module logs is discarded, for the warm-up step, which is
    undone.
    """
    module.log = module.log_dict = lambda *_arguments, **_more: None
    try:
        yield
    finally:
        del module.log, module.log_dict
