"""The group of a collective job's members over NCCL, for models on GPUs. It is formed and interrupted in the
same way as the group over Gloo.

NCCL differs from Gloo as follows, according to its documentation and PyTorch's, and to tests on one GPU that
several members share (`make test-gpu`):

* An operation is queued on a CUDA stream. ``Work.wait`` makes the stream wait, not the process, and a future
  is done before its operation is. So the process polls ``is_completed`` before it updates the model.
* An operation that waits for a dead member ends only when the communicator is aborted. It then counts as
  completed, but its result is undefined. So after each operation the group checks whether it was interrupted.
* The communicator is created when the group forms, not in the first step, and can be aborted while it is
  being created.
* PyTorch's watchdog would end the process when a member is lost, so it is configured only to log.
* Aborting a communicator took up to a second. A process that ended meanwhile ended with SIGABRT.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed

from edl_workflows.training.collective.gloo_group import LEAVE_SECONDS, GlooGroup, collectively
from edl_workflows.training.collective.recordings import recording_of
from edl_workflows.training.collective.regrouping import Place

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

    def leave(self) -> None:
        """Disconnect before the process ends: send what the others still wait for, or wait until the
        communicator is aborted. Otherwise the process may end with SIGABRT, which hides why it ended."""
        with self._changed:
            over, group = self._reason, self._group
            self._reason = over or f"the group of version {self.version} is closed"
        if over:
            super().leave()
        elif group is not None and self.quiet and ends_in_time(group.shutdown):
            self._group = self._unfinished = None
        else:
            self._abort()

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


def ends_in_time(work: Callable[[], object]) -> bool:
    """Whether a call ends within `LEAVE_SECONDS`. It is not made while the interpreter ends, since threads
    can't start then."""
    thread = threading.Thread(target=work, name="leave", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        return False
    thread.join(LEAVE_SECONDS)
    return not thread.is_alive()


def _dump_trace() -> bytes:
    return bytes(torch._C._distributed_c10d._dump_nccl_trace())  # noqa: SLF001 - it has no public name
