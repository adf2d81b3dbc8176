"""The group of a collective job's members over NCCL, for models on GPUs. It is formed and interrupted in the
same way as the group over Gloo. It was tested with a stand-in for NCCL, not on GPUs.

According to the documentation of NCCL and PyTorch, NCCL differs from Gloo as follows:

* An operation is queued on a CUDA stream. ``Work.wait`` makes the stream wait, not the process, and a future
  is done before its operation is. So the process polls ``is_completed`` before it updates the model.
* An operation that waits for a dead member ends only when the communicator is aborted. It then counts as
  completed, but its result is undefined. So after each operation the group checks whether it was interrupted.
* The communicator is created when the group forms, not in the first step, and can be aborted while it is
  being created.
* PyTorch's watchdog would end the process when a member is lost, so it is configured only to log.
"""

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed

from edl_workflows.agent.gloo_group import GlooGroup, collectively
from edl_workflows.agent.recordings import recording_of
from edl_workflows.agent.world import Place

_POLL_SECONDS = 0.0005
_WATCHDOG_VARIABLE, _ONLY_LOG = "TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"

log = logging.getLogger(__name__)


def choose_group(place: Place, device: torch.device) -> GlooGroup:
    """A group over NCCL if the model is on an NVIDIA GPU, else over Gloo."""
    if device.type == "cuda" and distributed.is_nccl_available():
        return NcclGroup(place, device)
    return GlooGroup(place)


class NcclGroup(GlooGroup):
    """The members of a version, each with one GPU.

    Args:
        place: this member's place in the group.
        device: device of the model.
    """

    def __init__(self, place: Place, device: torch.device) -> None:
        super().__init__(place)
        self.device = device
        self._unfinished: Any = None

    def wait(self, begun: Sequence[Any]) -> None:
        """Wait until operations are done, also on the GPU."""
        with self._wait_for_others():
            for operation in begun:
                while not collectively(operation.work.is_completed):
                    self._check()
                    self._changed.wait(_POLL_SECONDS)
                self._check()  # an aborted operation also counts as completed
                self._end(operation)
        for operation in begun:
            collectively(operation.work.wait)

    def _watch(self, operation: Any) -> None:
        """Do nothing: `wait` polls the operation instead."""

    def _build(self, store: Any, _own: str) -> Any:
        os.environ.setdefault(_WATCHDOG_VARIABLE, _ONLY_LOG)
        options = distributed.ProcessGroupNCCL.Options()
        options.config.blocking = False
        group = distributed.ProcessGroupNCCL(store, self.rank, self.size, options)
        with self._changed:
            self._check()
            self._unfinished = group
        group.eager_connect_single_device(self.device)
        return group

    def _abort(self) -> None:
        self._save_recording()
        with self._changed:
            group = self._group or self._unfinished
        if group is not None:
            try:
                group.abort()
            except RuntimeError as error:
                log.warning("NCCL's communicator of version %d was not aborted: %s", self.version, error)
        with self._changed:
            self._running.clear()
            self._changed.notify_all()
        self._group = self._unfinished = None

    def _save_recording(self) -> None:
        """Write the last operations to a file for PyTorch's analyzer. PyTorch's recorder would write it after
        a time-out, but the abort comes first."""
        file = recording_of(os.environ, self.rank)
        if file is None or not self._running:
            return
        try:
            file.write_bytes(_dump_trace())
        except (OSError, RuntimeError, AttributeError) as error:
            log.warning("NCCL's flight recorder can't write %s: %s", file, error)
        else:
            log.warning("NCCL's last operations in version %d are in %s", self.version, file)


def _dump_trace() -> bytes:
    return bytes(torch._C._distributed_c10d._dump_nccl_trace())  # noqa: SLF001 - it has no public name
