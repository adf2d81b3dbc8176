"""Sums the gradients of a PyTorch model over the members of a group while the backward pass still computes
further gradients, as in ``DistributedDataParallel`` (Li et al., "PyTorch Distributed", VLDB 2020, §3.2)."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.training.collective.gloo_group import GlooGroup, NoGroup
from edl_workflows.training.frameworks.torch_shards import as_shard, local_part

_BUCKET_BYTES, _FIRST_BUCKET_BYTES = 25 * 2**20, 2**20
"""As in ``DistributedDataParallel``. The first bucket is small, so that communication begins early."""


class GradientBuckets:
    """The gradients of all trained parameters, in buckets that are all-reduced one after the other.

    Each parameter's ``grad`` is a part of a bucket, so later backward passes of a step add to the bucket. All
    members begin to reduce the buckets in the same order, whichever gradients are ready first. For a sharded
    parameter, a bucket contains the shard of this process.

    Gradients are divided by `expected_records` before they are summed. It is the number of records in the
    last step, which is the same in all members. If this step has as many records, the sum is already the
    mean, and no further pass over the gradients is needed.

    Args:
        trained: the trained parameters.
    """

    def __init__(self, trained: Sequence[torch.nn.Parameter]) -> None:
        self._group: GlooGroup | NoGroup = NoGroup()
        self._buckets = _cut_into_buckets(trained)
        self._bucket_of = {parameter: bucket for bucket in self._buckets for parameter in bucket.parts}
        self._begun: list[Any] = []
        self._failure: UnavailableError | None = None
        self._reducing = False
        self.expected_records = 1.0
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(self._gradient_is_ready)

    def use(self, group: GlooGroup, *, renew: bool) -> None:
        """Reduce over another group from now on.

        Args:
            group: the group of the present members.
            renew: whether to allocate new memory, because operations of the former group may still use the
                present memory.
        """
        self._group = group
        self.expected_records = 1.0  # new members, and those a step behind, know no other number
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
        """A context for the last backward pass of a step: each bucket's all-reduce begins as soon as all its
        gradients are ready."""
        self._reducing = True
        try:
            yield
        finally:
            self._reducing = False

    def reduce(self, numbers: torch.Tensor) -> torch.Tensor:
        """Sum gradients and `numbers` over the members, and return the sums of `numbers`. Call `divide`
        next.
        """
        for bucket in self._buckets[len(self._begun) :]:
            self._begin(bucket)
        if self._failure is not None:
            raise self._failure
        numbers = numbers.to(self._group.device)
        self._group.wait([*self._begun, self._group.all_reduce(numbers)])
        return numbers

    def divide(self, records: float) -> None:
        """Turn the summed gradients into means over the records of all members."""
        if records != self.expected_records:
            for bucket in self._buckets:
                bucket.content.mul_(self.expected_records / records)
            self.expected_records = records

    def _gradient_is_ready(self, parameter: torch.nn.Parameter) -> None:
        home = self._bucket_of[parameter]
        home.copy_gradient(parameter)
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
        except UnavailableError as error:  # `reduce` raises it, since autograd would hide its type here
            self._failure = self._failure or error
            self._begun.append(None)


class _Bucket:
    """Parameters of one type and device, and the memory of their gradients."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        self._parameters = parameters
        self.renew()

    def renew(self) -> None:
        first = self._parameters[0]
        sizes = [local_part(parameter).numel() for parameter in self._parameters]
        self.content = torch.zeros(sum(sizes), dtype=first.dtype, device=first.device)
        self.parts = {
            parameter: as_shard(_in_order_of(local_part(parameter), piece), parameter)
            for parameter, piece in zip(self._parameters, self.content.split(sizes), strict=True)
        }
        self.missing = set(self.parts)

    def clear(self) -> None:
        self.missing = set(self.parts)
        for parameter in self.parts:
            parameter.grad = None  # the first backward pass then writes gradients instead of adding to zeros

    def copy_gradient(self, parameter: torch.nn.Parameter) -> None:
        """Copy a parameter's gradient into the bucket, unless it is there already."""
        part, gradient = local_part(self.parts[parameter]), parameter.grad
        if gradient is None:
            part.zero_()
        elif gradient.is_sparse:
            part.copy_(gradient.to_dense())
        elif local_part(gradient).data_ptr() != part.data_ptr():
            part.copy_(local_part(gradient))
        parameter.grad = self.parts[parameter]

    def collect(self) -> None:
        for parameter in self.parts:
            self.copy_gradient(parameter)


def _in_order_of(parameter: torch.Tensor, piece: torch.Tensor) -> torch.Tensor:
    """A piece of memory as a tensor whose values have the same order in memory as those of a parameter, such
    as channels-last. Otherwise an optimizer is slower, or refuses the gradient."""
    strides = torch.empty_like(parameter, device="meta").stride()
    return piece.as_strided(parameter.shape, strides, piece.storage_offset())


def _cut_into_buckets(trained: Sequence[torch.nn.Parameter]) -> list[_Bucket]:
    """Fill buckets from the last parameter to the first, which is roughly the order in which their gradients
    become ready."""
    cuts: list[list[torch.nn.Parameter]] = []
    size = 0
    for parameter in reversed(trained):
        parameter_bytes = local_part(parameter).numel() * parameter.element_size()
        last = cuts[-1][-1] if cuts else None
        if (
            last is None
            or size >= (_BUCKET_BYTES if len(cuts) > 1 else _FIRST_BUCKET_BYTES)
            or (last.dtype, last.device) != (parameter.dtype, parameter.device)
        ):
            cuts.append([])
            size = 0
        cuts[-1].append(parameter)
        size += parameter_bytes
    return [_Bucket(cut) for cut in cuts]
