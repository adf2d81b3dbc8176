"""PyTorch adapter for collective jobs: data-parallel training with a fixed global batch, whose members come
and go.

A training program defines how to build its model, and makes one step in each turn of the loop::

    def build() -> TorchModel:
        model = Net()
        optimizer = torch.optim.AdamW(model.parameters())
        losses = lambda x, y: torch.nn.functional.cross_entropy(model(x), y, reduction="none")
        return TorchModel(model, optimizer, losses, example={"x": images[:2], "y": labels[:2]})

    with training(job, build, Dataset(len(images), batch_size=32, num_epochs=10), options) as run:
        for mini_batches in run:
            run.step([{"x": images[list(i)], "y": labels[list(i)]} for i in mini_batches])

Each member sums the gradients of its mini-batches. They are all-reduced in buckets, the last layers' first,
while the backward pass of the last mini-batch still computes those of the first layers, as in
``DistributedDataParallel`` (Li et al., "PyTorch Distributed", VLDB 2020, §3.2). Every member then applies the
same mean gradient, so that the models stay equal.

The group is one of Gloo over a store at rank 0 (`edl_workflows.agent.gloo_group`), or of NCCL for a model on
GPUs (`edl_workflows.agent.nccl_group`). Store and Gloo listen on the members' own addresses only. When the
members change, the processes keep model and optimizer in memory and form another group
(`edl_workflows.agent.regrouping`). A step updates nothing before all sums are there. If it fails, the members
that are left make it again.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from edl_workflows.agent import world
from edl_workflows.agent.checkpoint_parts import WHOLE, Part
from edl_workflows.agent.gloo_group import GlooGroup, NoGroup
from edl_workflows.agent.job import Job
from edl_workflows.agent.nccl_group import choose_group
from edl_workflows.agent.options import TrainingOptions
from edl_workflows.agent.regrouping import DamagedStateError
from edl_workflows.agent.sampler import Dataset
from edl_workflows.agent.tensors import Array, CopyGuard, State
from edl_workflows.agent.torch_parts import part_of_state
from edl_workflows.agent.torch_state import (
    checksum,
    describe_tensors,
    empty_tensors,
    from_saved_state,
    join,
    split,
)
from edl_workflows.agent.world import Place, Reduced, Wishes
from edl_workflows.exceptions import CheckpointError, InvalidError, UnavailableError

__all__ = ["Dataset", "TorchModel", "TrainingOptions", "training"]

_BUCKET_BYTES, _FIRST_BUCKET_BYTES = 25 * 2**20, 2**20
"""As in ``DistributedDataParallel``: the first is small, so that the group begins early."""

Inputs = Mapping[str, Any]


@dataclass(frozen=True)
class TorchModel:
    """The model that a training program builds.

    Attributes:
        model: its parameters that require a gradient are trained; its buffers are saved, and broadcast when
            the members change. Between changes each member has its own buffers.
        optimizer: over these parameters.
        losses: returns the loss of each record of a mini-batch; called with the inputs by name, which are
            tensors on the model's device.
        example: inputs of one mini-batch, for the warm-up step.
        update: makes one update from the parameters' ``grad``, which is the mean over the global batch;
            default: ``optimizer.step``. The place for gradient clipping and for a scheduler's step.
        more: what else is saved and broadcast, by name: anything with ``state_dict`` and
            ``load_state_dict``, such as a scheduler.
    """

    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    losses: Callable[..., torch.Tensor]
    example: Inputs
    update: Callable[[], object] | None = None
    more: Mapping[str, Any] | None = None


@contextlib.contextmanager
def training(
    job: Job, build: Callable[[], TorchModel], dataset: Dataset, options: TrainingOptions
) -> Iterator[world.World]:
    """Train with the job's other workers.

    On entry model and optimizer hold the checkpoint that the master names, else the newest one in the store,
    else the initial values of rank 0. When the block ends without an error, rank 0 saves. Checkpoints are
    saved in two stages, as with ``async_save``.

    Args:
        job: from `edl_workflows.agent.connect`.
        build: builds the model; called once, before the group forms.
        dataset: the training data; the same in all members.
        options: how to train.

    Raises:
        InvalidError: the job is not collective, this node is not a member, or a part of the state can't be
            saved.
        SystemExit: asked to exit, the group broke, or the checkpoint to start from is damaged
            (`Job.start_from`).
    """
    saving = world.Saving.from_options(options)
    with world.training(job, TorchTraining(build, options.threads), dataset, saving) as run:
        yield run


class TorchTraining:
    """A member's model and group: implements `edl_workflows.agent.regrouping.RegroupingFramework`.

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
        """Of the state that is copied in another thread."""
        self._group: GlooGroup | None = None

    def join(self, place: Place) -> None:
        """Build the model, make a warm-up step that is undone, and form the group."""
        self.prepare()
        self.regroup(place)

    def prepare(self) -> None:
        """Build the model, and make a warm-up step that is undone."""
        if self._threads:
            torch.set_num_threads(self._threads)
        self._parts = self._build()
        trained = [one for one in self._parts.model.parameters() if one.requires_grad]
        if not trained:
            raise InvalidError("the model has no parameter that requires a gradient")
        self._device = trained[0].device
        split(self._state())  # says now what a checkpoint could not hold
        self._gradients = GradientBuckets(trained)
        self._warm_up()

    def regroup(self, place: Place) -> None:
        """Form a group in place of the present one, if there is one."""
        before, group = self._group, choose_group(place, self._device)
        if before is not None:
            before.close()
        with self._lock:
            self._group = group
            over = place.version <= self._over
        if over:
            group.interrupt(f"version {place.version} is over")
        group.form()
        self._gradients.use(group, renew=before is not None and not before.quiet)

    def interrupt(self, version: int) -> None:
        """End the waits of the group if it is of this version or an earlier one."""
        with self._lock:
            self._over = max(self._over, version)
            group = self._group
        if group is not None and group.version <= version:
            group.interrupt(f"version {group.version} is over")

    def waiting(self) -> float:
        """Seconds for which this member has waited for the others; 0 while it does not."""
        group = self._group
        return 0.0 if group is None else group.waiting

    def compare(self, step: int) -> list[int]:
        """The numbers that the members give, by rank."""
        return self._formed.gather(step)

    def state(self, step: int, metadata: Mapping[str, str]) -> State:
        """All of model, optimizer and `more`."""
        return self.part_state(step, metadata, WHOLE)

    def part_state(self, step: int, metadata: Mapping[str, str], part: Part) -> State:
        """This member's part of them. Parameters and the optimizer's tensors may be copied in another thread
        until the next update; all others are copied now, since a forward pass may change them."""
        skeleton, tensors = split(self._state())
        names = self._parts.model.named_parameters(remove_duplicate=False)
        kept = {f"model/{name}" for name, _ in names}
        copied = {
            name: one if name in kept or name.startswith("optimizer/") else one.clone()
            for name, one in tensors.items()
        }
        return part_of_state(join(skeleton, copied), step, metadata, part, self.copying)

    def load(self, tensors: Mapping[str, Array]) -> None:
        """Load all of them."""
        self._load(from_saved_state(tensors))

    def broadcast(self, numbers: Sequence[int], root: int = 0, *, load: bool = True) -> list[int]:
        """Broadcast the state and numbers of rank `root`. A state is loaded when all of it has arrived, with
        the checksum that `root` has computed."""
        group = self._formed
        skeleton, tensors = split(self._state())
        described = json.dumps([list(numbers), skeleton, describe_tensors(tensors)]).encode()
        sent = group.broadcast_bytes(described, root)
        try:
            first_numbers, skeleton, descriptions = json.loads(sent)
            if group.rank != root:
                tensors = empty_tensors(descriptions)
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            raise DamagedStateError(
                f"what rank {root} says of its state can't be read: {error!r}; do all members run the same "
                "version of edl-workflows?"
            ) from error
        received = {name: group.broadcast(tensor, root) for name, tensor in tensors.items()}
        sums = group.gather(checksum(received))
        if load and sums[group.rank] != sums[root]:
            raise DamagedStateError(f"the state of rank {root} arrived damaged: its checksum differs")
        if load and group.rank != root:
            self._load(join(skeleton, received))
        return [int(number) for number in first_numbers]

    def step(self, mini_batches: Sequence[Inputs], wishes: Wishes) -> Reduced:
        """Accumulate gradients, all-reduce them, and update."""
        filled = [inputs for inputs in mini_batches if len(next(iter(inputs.values())))]
        numbers = torch.tensor([0.0, 0.0, wishes.drain, wishes.leave, wishes.save], dtype=torch.float64)
        self._gradients.clear()
        for index, inputs in enumerate(filled):
            total, count = self.sum_losses(inputs)
            share = torch.full_like(total, 1.0 / self._gradients.expected_records)
            with self._gradients.reducing() if index == len(filled) - 1 else contextlib.nullcontext():
                total.backward(share)
            numbers[0] += total.detach().double().cpu()
            numbers[1] += count
        loss, records, drain, leave, save = self._gradients.reduce(numbers).tolist()
        self.copying.wait()
        (self._parts.update or self._parts.optimizer.step)()
        return Reduced(loss / records, Wishes(drain, leave, save))

    def sum_losses(self, inputs: Inputs) -> tuple[torch.Tensor, float]:
        """The sum of the losses of a mini-batch, and their number."""
        losses = self._parts.losses(**self._on_device(inputs))
        return losses.sum(), losses.numel()

    def meet(self) -> None:
        """All-reduce a constant, as a barrier."""
        self._formed.wait([self._formed.all_reduce(torch.zeros(1, device=self._formed.device))])

    @property
    def _formed(self) -> GlooGroup:
        assert self._group is not None, "join first"
        return self._group

    def _state(self) -> dict[str, Any]:
        parts = {"model": self._parts.model, "optimizer": self._parts.optimizer}
        more = {name: one.state_dict() for name, one in (self._parts.more or {}).items()}
        return {name: one.state_dict() for name, one in parts.items()} | {"more": more}

    def _load(self, state: Mapping[str, Any]) -> None:
        more = self._parts.more or {}
        self.copying.wait()
        try:
            if more.keys() != state["more"].keys():
                _refuse(f"it has {sorted(state['more'])} beside model and optimizer, not {sorted(more)}")
            self._parts.model.load_state_dict(state["model"])
            self._parts.optimizer.load_state_dict(state["optimizer"])
            for name, one in more.items():
                one.load_state_dict(state["more"][name])
        except (RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            _refuse(str(error) or repr(error), error)

    def _on_device(self, inputs: Inputs) -> dict[str, torch.Tensor]:
        return {name: torch.as_tensor(value).to(self._device) for name, value in inputs.items()}

    def _warm_up(self) -> None:
        """Run everything once and undo it: the first step allocates buffers and may compile."""
        skeleton, tensors = split(self._state())
        before = {name: tensor.clone() for name, tensor in tensors.items()}
        self.step([self._parts.example], Wishes())
        self._load(join(skeleton, before))


class GradientBuckets:
    """The gradients of all trained parameters, in buckets that are all-reduced one after the other.

    Each parameter's ``grad`` is a part of a bucket, to which later backward passes of a step add. The members
    begin the buckets in the same order, whichever gradients are ready first.

    Gradients are summed as shares of `expected_records`, the records of the last step, the same number in all
    members: if this step has as many, the sum is the mean already, and no pass over the gradients is needed.

    Args:
        trained: the parameters.
    """

    def __init__(self, trained: Sequence[torch.nn.Parameter]) -> None:
        self._group: GlooGroup | NoGroup = NoGroup()
        self._buckets = _cut_into_buckets(trained)
        self._bucket_of = {one: bucket for bucket in self._buckets for one in bucket.parts}
        self._begun: list[Any] = []
        self._failure: UnavailableError | None = None
        self._reducing = False
        self.expected_records = 1.0
        for one in trained:
            one.register_post_accumulate_grad_hook(self._gradient_is_ready)

    def use(self, group: GlooGroup, *, renew: bool) -> None:
        """Reduce over another group from now on.

        Args:
            group: of the present members.
            renew: whether to take other memory, because operations of the former group may still use it.
        """
        self._group = group
        self.expected_records = 1.0  # a member that comes, or is a step behind, expects another number
        if renew:
            for bucket in self._buckets:
                bucket.renew()

    def clear(self) -> None:
        """Forget all gradients, for a new step."""
        self._begun, self._failure = [], None
        for bucket in self._buckets:
            bucket.clear()

    @contextlib.contextmanager
    def reducing(self) -> Iterator[None]:
        """Within it a bucket's all-reduce begins once all its gradients are there: for the last backward pass
        of a step."""
        self._reducing = True
        try:
            yield
        finally:
            self._reducing = False

    def reduce(self, numbers: torch.Tensor) -> torch.Tensor:
        """Sum gradients and numbers over the members. The gradients are then means over the records, whose
        number is the second of the numbers; returns the sums of the numbers."""
        for bucket in self._buckets[len(self._begun) :]:
            self._begin(bucket)
        if self._failure is not None:
            raise self._failure
        numbers = numbers.to(self._group.device)
        self._group.wait([*self._begun, self._group.all_reduce(numbers)])
        records = float(numbers[1])
        if records != self.expected_records:
            for bucket in self._buckets:
                bucket.content.mul_(self.expected_records / records)
            self.expected_records = records
        return numbers

    def _gradient_is_ready(self, parameter: torch.nn.Parameter) -> None:
        home = self._bucket_of[parameter]
        home.take(parameter)
        if not self._reducing:
            return
        home.missing.discard(parameter)
        for bucket in self._buckets[len(self._begun) :]:
            if bucket.missing:
                break
            self._begin(bucket)

    def _begin(self, bucket: "_Bucket") -> None:
        bucket.collect()
        try:
            self._begun.append(self._group.all_reduce(bucket.content))
        except UnavailableError as error:  # raised by `reduce`, since autograd would hide its type here
            self._failure = self._failure or error
            self._begun.append(None)


class _Bucket:
    """Parameters of one type and device, and the memory of their gradients."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self.renew()

    def renew(self) -> None:
        first = self._parameters[0]
        sizes = [one.numel() for one in self._parameters]
        self.content = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        pieces = zip(self._parameters, self.content.split(sizes), strict=True)
        self.parts = {one: piece.view(one.shape) for one, piece in pieces}
        self.missing = set(self.parts)

    def clear(self) -> None:
        self.missing = set(self.parts)
        for parameter in self.parts:
            parameter.grad = None  # the first backward pass then writes gradients instead of adding to zeros

    def take(self, parameter: torch.nn.Parameter) -> None:
        """Have a parameter's gradient in the bucket, wherever autograd or the program has put it."""
        part, gradient = self.parts[parameter], parameter.grad
        if gradient is None:
            part.zero_()
        elif gradient.is_sparse:
            part.copy_(gradient.to_dense())
        elif gradient.data_ptr() != part.data_ptr():
            part.copy_(gradient)
        parameter.grad = part

    def collect(self) -> None:
        for parameter in self.parts:
            self.take(parameter)


def _cut_into_buckets(trained: Sequence[torch.nn.Parameter]) -> list[_Bucket]:
    """From the last parameter to the first, which is about the order in which gradients become ready."""
    cuts: list[list[torch.nn.Parameter]] = []
    size = 0
    for one in reversed(trained):
        bytes_of_one = one.numel() * one.element_size()
        last = cuts[-1][-1] if cuts else None
        if (
            last is None
            or size >= (_BUCKET_BYTES if len(cuts) > 1 else _FIRST_BUCKET_BYTES)
            or (last.dtype, last.device) != (one.dtype, one.device)
        ):
            cuts.append([])
            size = 0
        cuts[-1].append(one)
        size += bytes_of_one
    return [_Bucket(cut) for cut in cuts]


def _refuse(reason: str, error: Exception | None = None) -> NoReturn:
    raise CheckpointError(f"can't be restored into this model: {' '.join(reason.split())}") from error
