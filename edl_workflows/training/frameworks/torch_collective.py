"""PyTorch adapter for collective jobs: data-parallel training with a fixed global batch, while members join
and leave.

A training program defines how to build its model, and makes one step in each iteration of the loop::

    def build() -> TorchModel:
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters())
        losses = lambda x, y: torch.nn.functional.cross_entropy(model(x), y, reduction="none")
        return TorchModel(model, optimizer, losses, example={"x": images[:2], "y": labels[:2]})

    with training(job, build, Dataset(len(images), batch_size=32, num_epochs=10), options) as run:
        for mini_batches in run:
            run.step([{"x": images[list(i)], "y": labels[list(i)]} for i in mini_batches])

Each member sums the gradients of its mini-batches. They are all-reduced in buckets, beginning with the last
layers, while the backward pass of the last mini-batch still computes the gradients of the first layers, as in
``DistributedDataParallel`` (Li et al., "PyTorch Distributed", VLDB 2020, §3.2). Every member then applies the
same mean gradient, so that the models stay equal.

The group uses Gloo over a store at rank 0 (`edl_workflows.training.collective.gloo_group`), or NCCL for a
model on GPUs (`edl_workflows.training.collective.nccl_group`). The store and Gloo listen on the members' own
addresses only. When the members change, the processes keep model and optimizer in memory and form another
group (`edl_workflows.training.collective.regrouping`). A step updates nothing until all sums have arrived. If
it fails, the remaining members repeat it.

A model that is too large for one process is sharded within replica groups
(`edl_workflows.training.frameworks.torch_replica`).
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch.distributed.tensor import DTensor

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.training.checkpoints.checkpoint_parts import WHOLE, Part
from edl_workflows.training.checkpoints.copying import CopyGuard
from edl_workflows.training.checkpoints.tensors import Array, Loaded, State
from edl_workflows.training.collective import world
from edl_workflows.training.collective.framework import Reduced, Saving, Wishes
from edl_workflows.training.collective.gloo_group import GlooGroup
from edl_workflows.training.collective.nccl_group import choose_group
from edl_workflows.training.collective.regrouping import DamagedStateError, Place
from edl_workflows.training.collective.world import World
from edl_workflows.training.data.sampler import Dataset
from edl_workflows.training.data.torch_data import ElasticDataLoader
from edl_workflows.training.frameworks.gradient_buckets import GradientBuckets
from edl_workflows.training.frameworks.torch_copies.device import choose_device
from edl_workflows.training.frameworks.torch_copies.transfer import broadcast_state, restore_tensors
from edl_workflows.training.frameworks.torch_parts import make_template, part_of_state, restore_state
from edl_workflows.training.frameworks.torch_replica import Alone, ReplicaGroup
from edl_workflows.training.frameworks.torch_shards import Shards, local_part
from edl_workflows.training.frameworks.torch_state import (
    SplitState,
    from_saved_state,
    join,
    keep_order,
    split,
)
from edl_workflows.training.job import Job
from edl_workflows.training.options import TrainingOptions

__all__ = [
    "Dataset",
    "ElasticDataLoader",
    "TorchModel",
    "TrainingOptions",
    "World",
    "from_saved_state",
    "part_of_state",
    "restore_state",
    "training",
]

Inputs = Mapping[str, Any] | Sequence[Any]
"""A mini-batch: what `TorchModel.losses` takes, by name or in order."""

_LARGEST_KEPT_BLOCK = 31 * 2**20
"""Bytes. Releasing a block raises glibc's thresholds only if the block is smaller than 32 MiB."""


@dataclass(frozen=True)
class TorchModel:
    """The model that a training program builds.

    Attributes:
        model: the model. Its parameters that require a gradient are trained. Its buffers are saved, and are
            broadcast when the members change; between changes each member has its own buffers.
        optimizer: the optimizer of these parameters.
        losses: returns the loss of each record of a mini-batch; called with the inputs, by name if they are a
            dictionary, which are tensors on the model's device.
        example: inputs of one mini-batch, for the warm-up step.
        update: makes one update from the parameters' ``grad``, which is the mean over the global batch; by
            default ``optimizer.step``. Put gradient clipping and a scheduler's step here.
        more: other objects to save and broadcast, by name: anything with ``state_dict`` and
            ``load_state_dict``, such as a scheduler. A ``torch.amp.GradScaler`` among them scales the
            gradients of passes in 16-bit floating point, while `losses` returns losses that are not scaled.
            The default of `update` is then ``scaler.step(optimizer)`` and ``scaler.update()``; a function of
            your own calls both. If the gradients overflow in one member, no member updates.
        replica: the replica group over whose mesh ``fully_shard`` has sharded all trained parameters; None if
            this process has the whole model.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    losses: Callable[..., torch.Tensor]
    example: Inputs
    update: Callable[[], object] | None = None
    more: Mapping[str, Any] | None = None
    replica: ReplicaGroup | None = None


@contextlib.contextmanager
def training(
    job: Job, build: Callable[[], TorchModel], dataset: Dataset, options: TrainingOptions
) -> Iterator[World]:
    """Train with the job's other workers.

    On entry, model and optimizer have the state of the checkpoint that the master names, else of the newest
    checkpoint in the store, else the initial values of rank 0. When the block ends without an error, rank 0
    saves. Checkpoints are saved in two stages, as with ``async_save``.

    Args:
        job: from `edl_workflows.training.connect`.
        build: builds the model; called once, before the group forms.
        dataset: the training data; the same in all members.
        options: how to train.

    Raises:
        InvalidError: the job is not collective, this node is not a member, or a part of the state can't be
            saved.
        SystemExit: the process was asked to exit, the group broke, or the checkpoint to start from is damaged
            (`Job.start_from`).
    """
    saving = Saving.from_options(options)
    with world.training(job, TorchTraining(build, options.threads), dataset, saving) as run:
        yield run


class TorchTraining:
    """A member's model and group: implements
    `edl_workflows.training.collective.regrouping.RegroupingFramework`.

    Args:
        build: builds the model.
        threads: threads within an operation; 0: PyTorch's default, one per core.
    """

    def __init__(self, build: Callable[[], TorchModel], threads: int = 0) -> None:
        self._build = build
        self._threads = threads
        self._lock = threading.Lock()
        self._over = 0
        self.copying = CopyGuard()
        """Guards the state while another thread copies it."""
        self._group: GlooGroup | None = None
        self._former: GlooGroup | None = None
        self._replica: ReplicaGroup | Alone = Alone()

    def join(self, place: Place) -> None:
        """Build the model, make a warm-up step that is undone, and form the group."""
        self.prepare()
        self.regroup(place)

    def prepare(self) -> None:
        """Build the model, and make a warm-up step that is undone."""
        if self._threads:
            torch.set_num_threads(self._threads)
        self._parts = self._build()
        trained = [parameter for parameter in self._parts.model.parameters() if parameter.requires_grad]
        if not trained:
            raise InvalidError("the model has no parameter that requires a gradient")
        self._replica = self._parts.replica or Alone()
        _require_shards(self._parts, trained)
        self._scaler = _find_scaler(self._parts)
        self._shards = Shards(self._parts.model, self._parts.optimizer)
        self._device = trained[0].device
        self._non_blocking = self._device.type == "cuda"  # a copy to the CPU would return without the values
        _skeleton, tensors = self._split_state()  # raises now if a checkpoint could not hold the state
        self._copy_device = choose_device(map(local_part, tensors.values()))
        self._gradients = GradientBuckets(trained)
        _keep_freed_memory()
        self._warm_up()

    def regroup(self, place: Place) -> None:
        """Form a group in place of the present one, if there is one."""
        self._replica.meet_in(place.version)
        before, group = self._group, choose_group(self._replica.ring(place), self._device)
        with self._lock:
            self._group = group
            over = place.version <= self._over
        if over:
            group.interrupt(f"version {place.version} is over")
        try:
            self._replica.agree(group.form)
        finally:
            # Not earlier: if both groups use the same port, a quicker member has already connected to the
            # former group's store.
            if before is not None:
                before.close()
                self._former = before
        self._gradients.use(group, renew=before is not None and not before.quiet)

    def close(self) -> None:
        """Disconnect from the other members, within seconds, because this process ends."""
        for group in (self._former, self._group):
            if group is not None:
                group.leave()
        self._replica.close()

    def interrupt(self, version: int) -> None:
        """End all waits of the group if it belongs to this version or an earlier one."""
        with self._lock:
            self._over = max(self._over, version)
            group = self._group
        if group is not None and group.version <= version:
            group.interrupt(f"version {group.version} is over")

    def waiting(self) -> float:
        """Seconds for which this member has waited for the others; 0 if it is not waiting."""
        group = self._group
        return max(0.0 if group is None else group.waiting, self._replica.waiting)

    def guarding(self) -> contextlib.AbstractContextManager[None]:
        """A context for what the program computes with the model outside of a step."""
        return self._replica.guarding()

    def any_of_replica(self, wanted: bool) -> bool:
        """Whether `wanted` is true in at least one process of this process's replica group."""
        return any(self._replica.gather(wanted))

    def compare(self, step: int) -> list[int]:
        """The numbers that the members pass, by rank; with replica groups, that of the first process of each
        group."""
        numbers = self._replica.agree(lambda: self._formed.gather(step))
        return [self._replica.gather(number)[0] for number in numbers]

    def state(self, step: int, metadata: Mapping[str, str]) -> State:
        """The whole state of model, optimizer and `more`."""
        return self.part_state(step, metadata, WHOLE)

    def part_state(self, step: int, metadata: Mapping[str, str], part: Part) -> State:
        """This member's part of the state. Parameters and the optimizer's tensors may be copied until the
        next update, by another thread or the GPU; all others are copied now, since a forward pass may change
        them."""
        skeleton, tensors = self._split_state()
        names = self._parts.model.named_parameters(remove_duplicate=False)
        kept = {f"model/{name}" for name, _ in names}
        copied = {
            name: tensor if name in kept or name.startswith("optimizer/") else tensor.clone()
            for name, tensor in tensors.items()
        }
        return part_of_state(join(skeleton, copied), step, metadata, part, self.copying, self._copy_device)

    def load(self, tensors: Mapping[str, Array]) -> None:
        """Load the whole state."""
        homes = functools.partial(self._shards.home, self._parts.model.state_dict())
        self._load(
            from_saved_state(tensors, lambda arrays: restore_tensors(self._copy_device, arrays, homes))
        )

    def load_parts(self, parts: Iterable[Loaded], where: str) -> None:
        """Load this process's shards of the state."""
        loaded_parts = list(parts)
        template = make_template(loaded_parts, self._shards.empty, where)
        self._load(restore_state(template, loaded_parts, where, self._copy_device))

    def broadcast(self, numbers: Sequence[int], root: int = 0, *, load: bool = True) -> list[int]:
        """Broadcast the state and numbers of rank `root`. A state is loaded only if all of it has arrived and
        has the checksum that `root` computed. With replica groups, `root` is a group: each process gets the
        shards of the process with the same index in that group, and either all processes of a group load or
        none."""
        first_numbers, state = self._replica.agree(lambda: self._receive(numbers, root, load))
        if len(set(self._replica.gather(sum(first_numbers)))) > 1:
            raise DamagedStateError("the processes of the replica group got states of different steps")
        if state is not None:
            self._load(state)
        return first_numbers

    def _receive(self, numbers: Sequence[int], root: int, load: bool) -> tuple[list[int], Any]:
        """The numbers of rank `root`, and its state if this process must load it."""
        skeleton, tensors = self._split_state()
        mine = SplitState(skeleton, {name: local_part(tensor) for name, tensor in tensors.items()})
        sent = broadcast_state(self._formed, numbers, mine, root, load=load)
        if sent.state is None:
            return sent.numbers, None
        received = sent.state.tensors
        restored = {name: self._shards.restored(name, tensor) for name, tensor in received.items()}
        return sent.numbers, join(sent.state.skeleton, restored)

    def step(self, mini_batches: Sequence[Inputs], wishes: Wishes) -> Reduced:
        """Accumulate gradients, all-reduce them, and update."""
        asked = [0.0, 0.0, wishes.drain, wishes.leave, wishes.save]
        with self._replica.guarding():
            numbers = torch.tensor(asked, dtype=torch.float64).to(self._device, non_blocking=True)
            numbers[0], numbers[1] = self._accumulate(mini_batches)
            numbers = self._replica.add(lambda: self._gradients.reduce(numbers))
            loss, records, drain, leave, save = numbers.tolist()
            self._gradients.divide(records)
            self.copying.wait()
            self._update()
        return Reduced(loss / records, Wishes(drain, leave, save))

    def _update(self) -> None:
        parts = self._parts
        if parts.update is not None:
            parts.update()
        elif self._scaler is not None:
            self._scaler.step(parts.optimizer)
            self._scaler.update()
        else:
            parts.optimizer.step()

    def _accumulate(self, mini_batches: Sequence[Inputs]) -> tuple[torch.Tensor, float | torch.Tensor]:
        """Begin to sum the gradients; returns the sum of the losses, and the number of records. Both stay on
        the model's device: reading them would wait for it after each mini-batch.

        All processes of a replica group must make the same number of passes, so an empty mini-batch is
        replaced by the example with weight 0. ``fully_shard`` averages gradients over the group, so each
        share is multiplied by the group's size.
        """
        losses = torch.zeros((), dtype=torch.float64, device=self._device)
        records: float | torch.Tensor = 0.0
        passes = [(inputs, 1.0) for inputs in mini_batches if len(_values(inputs)[0])]
        if self._replica.size > 1:
            passes += [(self._parts.example, 0.0)] * (len(mini_batches) - len(passes))
        self._gradients.clear()
        for index, (inputs, weight) in enumerate(passes):
            total, count = self.sum_losses(inputs)
            share = weight * self._replica.size / self._gradients.expected_records
            with self._gradients.reducing() if index == len(passes) - 1 else contextlib.nullcontext():
                gradient = torch.full_like(total, share)
                total.backward(gradient if self._scaler is None else self._scaler.scale(gradient))
            losses = losses + weight * self._move(total.detach()).double()
            counted = self._move(count).double() if isinstance(count, torch.Tensor) else count
            records = records + weight * counted
        return losses, records

    def sum_losses(self, inputs: Inputs) -> tuple[torch.Tensor, float | torch.Tensor]:
        """The sum of the losses of a mini-batch, and their number."""
        values = [self._move(torch.as_tensor(value)) for value in _values(inputs)]
        if isinstance(inputs, Mapping):
            losses = self._parts.losses(**dict(zip(inputs, values, strict=True)))
        else:
            losses = self._parts.losses(*values)
        return losses.sum(), losses.numel()

    def _move(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the device of the first parameter: a model may be spread over several GPUs."""
        return tensor.to(self._device, non_blocking=self._non_blocking)

    def meet(self) -> None:
        """All-reduce a constant, as a barrier."""
        constant = torch.zeros(1, device=self._formed.device)
        self._replica.agree(lambda: self._formed.wait([self._formed.all_reduce(constant)]))

    @property
    def _formed(self) -> GlooGroup:
        assert self._group is not None, "join first"
        return self._group

    def _split_state(self) -> SplitState:
        return split(self._state(), sharded=self._parts.replica is not None)

    def _state(self) -> dict[str, Any]:
        parts = {"model": self._parts.model, "optimizer": self._parts.optimizer}
        more = {name: stateful.state_dict() for name, stateful in (self._parts.more or {}).items()}
        return {name: stateful.state_dict() for name, stateful in parts.items()} | {"more": more}

    def _load(self, state: Mapping[str, Any]) -> None:
        more = self._parts.more or {}
        self.copying.wait()
        try:
            if more.keys() != state["more"].keys():
                _refuse(f"it has {sorted(state['more'])} beside model and optimizer, not {sorted(more)}")
            self._parts.model.load_state_dict(state["model"])
            self._parts.optimizer.load_state_dict(state["optimizer"])
            keep_order(self._parts.optimizer)
            for name, stateful in more.items():
                stateful.load_state_dict(state["more"][name])
        except torch.OutOfMemoryError:
            raise  # the checkpoint is intact
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            _refuse(str(error) or repr(error), error)

    def _warm_up(self) -> None:
        """Run everything once and undo it: the first step allocates buffers and may compile."""
        skeleton, tensors = self._split_state()
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        self.step([self._parts.example], Wishes())
        self._load(join(skeleton, before))


def _values(inputs: Inputs) -> list[Any]:
    return list(inputs.values() if isinstance(inputs, Mapping) else inputs)


def _keep_freed_memory() -> None:
    """Make glibc keep the memory that a step frees, for the next step.

    glibc returns free memory to the kernel if it exceeds a threshold: twice the largest block that was
    released so far, at most 64 MiB (mallopt(3), M_MMAP_THRESHOLD). With gradients of a few MiB, each step had
    to get thousands of pages from the kernel again, which took 5 % of its time. So this releases one large
    block, which raises the threshold. Other allocators are not affected.
    """
    torch.empty(_LARGEST_KEPT_BLOCK, dtype=torch.uint8)


def _require_shards(parts: TorchModel, trained: Sequence[torch.nn.Parameter]) -> None:
    mesh = parts.replica.mesh if parts.replica is not None else None
    whole = [
        parameter
        for parameter in trained
        if mesh != (parameter.device_mesh if isinstance(parameter, DTensor) else None)
    ]
    if whole and mesh is None:
        raise InvalidError("the parameters are sharded: name their replica group in TorchModel.replica")
    if whole:
        raise InvalidError(
            f"{len(whole)} of {len(trained)} trained parameters are not sharded over the replica group: call "
            "fully_shard(model, mesh=replica.mesh) before the optimizer is made"
        )


def _find_scaler(parts: TorchModel) -> torch.amp.GradScaler | None:
    scalers = [one for one in (parts.more or {}).values() if isinstance(one, torch.amp.GradScaler)]
    if scalers and parts.replica is not None:
        raise InvalidError(
            "a GradScaler can't be used with a replica group: its processes would leave out different "
            "updates, each by its own shard; use bfloat16, which needs no scaler"
        )
    if len(scalers) > 1:
        raise InvalidError("TorchModel.more has several GradScalers: which one scales the gradients?")
    return scalers[0] if scalers else None


def _refuse(reason: str, error: Exception | None = None) -> NoReturn:
    raise CheckpointError(f"can't be restored into this model: {' '.join(reason.split())}") from error
