"""Replica groups of PyTorch: workers that hold the model together, each a shard of it.

With ``spec.rendezvous.nodeUnit: 2``, the workers of ranks 0 and 1 hold one copy of the model, those of ranks
2 and 3 another, and so on. Within a group, the program shards the model with ``fully_shard`` over the group's
mesh. Between groups, gradients are summed in the same way as between members that each hold the whole model
(`edl_workflows.training.frameworks.torch_collective`): the members with the same index in each group, which
hold the same shards, sum theirs.

The group is the unit of failure, as in TorchFT. Its connections, over PyTorch's default process group, are
made when its processes start, and never change. If a process is lost, the master takes the whole group out,
the other groups continue, and a group of new processes joins later.

The members of a group act alike: if one member could not do something, such as a step, it counts as not done
in all of them.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh

from edl_workflows.core.exceptions import InvalidError, UnavailableError
from edl_workflows.core.protocol.nodes import CLUSTER_LOST_EXIT_CODE
from edl_workflows.training.cluster_member import TERMINATED
from edl_workflows.training.collective.gloo_group import (
    WAIT_LIMIT,
    build_gloo,
    collectively,
    dial_store,
    own_address,
    serve_store,
)
from edl_workflows.training.collective.nccl_group import ends_in_time
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.collective.world import find_place
from edl_workflows.training.job import Job

__all__ = ["ReplicaGroup", "join_replica_group"]

_BACKEND = "edl-gloo"
"""PyTorch's name for a Gloo backend that listens on the member's own address only."""
_AGAIN = "again"
"""Key in the group's store. It is set when a member's process was started again, so that the others must also
be started again."""
_LOOK_SECONDS = 0.25
_FAILED = 1

log = logging.getLogger(__name__)
T = TypeVar("T")


class Alone:
    """A process that holds the whole model."""

    size = 1
    waiting = 0.0

    def ring(self, place: Place) -> Place:
        """The place among the members that hold the same shards, which are all members."""
        return place

    def agree(self, work: Callable[[], T]) -> T:
        """Return the result of `work`."""
        return work()

    def add(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Return the result of `work`: the sum over one member."""
        return work()

    def gather(self, number: int) -> list[int]:
        """The number of the only member."""
        return [number]

    def meet_in(self, _version: int) -> None:
        """Do nothing: there is nobody to wait for."""

    def guarding(self) -> contextlib.AbstractContextManager[None]:
        """A context that passes errors on."""
        return contextlib.nullcontext()

    def close(self) -> None:
        """Do nothing: there is nobody to disconnect from."""


class ReplicaGroup:
    """The processes that hold the model together, seen by one of them. Made by `join_replica_group`.

    Args:
        job: the job of this process.
        mesh: see below.
        server: in the process with index 0, the store that this object keeps open; else None.

    Attributes:
        size: number of processes.
        index: index of this process, from 0.
        mesh: the one-dimensional mesh of the group's processes, for ``fully_shard``.
    """

    def __init__(self, job: Job, mesh: DeviceMesh, server: Any = None) -> None:
        self.size = mesh.size()
        self.index = mesh.get_local_rank()
        self.mesh = mesh
        self._job = job
        self._server = server
        self._waits_since = 0.0
        self._broken = False

    @property
    def waiting(self) -> float:
        """Seconds for which this process has waited for the others of its group; 0 if it is not waiting."""
        since = self._waits_since
        return time.monotonic() - since if since else 0.0

    def ring(self, place: Place) -> Place:
        """This process's place among the processes that hold the same shards: one of each group, by group."""
        return replace(
            place, rank=place.rank // self.size, addresses=place.addresses[self.index :: self.size]
        )

    def agree(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, if it succeeds in all processes of the group.

        Raises:
            UnavailableError: `work` raised this error, in this or in another process.
            SystemExit: the group is broken.
        """
        results: list[T] = []

        def count() -> torch.Tensor:
            results.append(work())
            return torch.zeros(1, dtype=torch.float64)

        self.add(count)
        return results[0]

    def add(self, work: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Sum the results of `work` over the group, if it succeeds in all processes.

        Args:
            work: returns 64-bit numbers, the same number of them in each process.

        Raises:
            UnavailableError, SystemExit: see `agree`.
        """
        numbers, failure = torch.zeros(0, dtype=torch.float64), None
        try:
            numbers = work().cpu()
        except UnavailableError as error:
            failure = error
        if sum(self.gather(failure is not None)):
            raise failure or UnavailableError("another process of the replica group could not do the same")
        self._all_reduce(numbers)
        return numbers

    def gather(self, number: int) -> list[int]:
        """The numbers of all processes of the group, by index.

        Raises:
            SystemExit: the group is broken.
        """
        numbers = torch.zeros(self.size, dtype=torch.int64)
        numbers[self.index] = int(number)
        self._all_reduce(numbers)
        return list(map(int, numbers.tolist()))

    def meet_in(self, version: int) -> None:
        """Wait until all processes of the group are about to form the group of the same cluster version.

        Raises:
            UnavailableError: another process knows of a later version.
            SystemExit: the group is broken.
        """
        while len(set(versions := self.gather(version))) > 1:
            if version < max(versions):
                raise UnavailableError(f"version {version} is over")

    @contextlib.contextmanager
    def guarding(self) -> Iterator[None]:
        """A context for operations in which an error of PyTorch may be caused by the loss of another process
        of the group. On an error, this waits until the master may have reported such a loss. If it has, this
        process exits without being blamed.

        Raises:
            SystemExit: PyTorch raised an error.
        """
        try:
            yield
        except RuntimeError as error:
            log.exception("the replica group failed")
            self._broken = True
            self._job.cluster_lost(f"the replica group failed: {_one_line(error)}", _FAILED)

    def close(self) -> None:
        """Disconnect from the other processes if they are connected over NCCL; see `NcclGroup.leave`."""
        if self.mesh.device_type != "cuda":
            return
        if self._broken or not ends_in_time(distributed.destroy_process_group):
            distributed.distributed_c10d._abort_process_group()  # noqa: SLF001 - it has no public name

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        self._waits_since = time.monotonic()
        try:
            distributed.all_reduce(tensor)
        except RuntimeError as error:
            self._broken = True
            self._job.cluster_lost(f"the replica group is broken: {_one_line(error)}")
        finally:
            self._waits_since = 0.0


def join_replica_group(job: Job, device_type: str = "cpu") -> ReplicaGroup:
    """Connect the processes of this process's replica group, ``spec.rendezvous.nodeUnit`` of them. Call it
    when building the model, before ``fully_shard``. Afterwards these processes are the members of PyTorch's
    default process group.

    Args:
        job: from `edl_workflows.training.connect`.
        device_type: device type of the model: ``cpu`` or ``cuda``.

    Raises:
        InvalidError: the job has no replica groups, or its members do not make up complete groups.
        UnavailableError: this process can't listen.
    """
    place, size = find_place(job), job.cluster.replica_size
    _require_whole_groups(job, place, size)
    first, index = place.rank // size * size, place.rank % size
    own = own_address(place.addresses[place.rank].rpartition(":")[0])
    host, _, port = place.addresses[first].rpartition(":")
    server = None
    if index == 0:
        host = own
        server = collectively(lambda: serve_store(own, int(port)))
    with _without_blame(job):
        _watch_start(job, _dial(job, host, int(port)))
        store = _dial(job, host, int(port))
        if store.add(f"arrived-{index}", 1) > 1:
            store.set(_AGAIN, "")
            _start_again("a process of the replica group was started again")
        _register_backend(own)
        backend = f"cpu:{_BACKEND}" + (",cuda:nccl" if device_type == "cuda" else "")
        distributed.init_process_group(backend, store=store, rank=index, world_size=size, timeout=WAIT_LIMIT)
        mesh = distributed.init_device_mesh(device_type, (size,), mesh_dim_names=("shards",))
    job.replica_size = size
    return ReplicaGroup(job, mesh, server)


def _require_whole_groups(job: Job, place: Place, size: int) -> None:
    if size == 1:
        raise InvalidError(
            f"job {job.name} has no replica groups: set spec.rendezvous.nodeUnit to the number of workers "
            "that hold the model together"
        )
    for count, subject in ((place.size, "the present members"), (job.cluster.max_workers, "maxNodes")):
        if count % size:
            raise InvalidError(
                f"{subject} ({count}) do not make whole replica groups of {size}: in spec.rendezvous, "
                "minNodes and maxNodes must be multiples of nodeUnit, and so must the number of workers"
            )


@contextlib.contextmanager
def _without_blame(job: Job) -> Iterator[None]:
    """A context for forming the group. If it fails because another process was lost, end this process without
    blame."""
    try:
        yield
    except distributed.DistNetworkError as error:
        _check(job)
        _start_again(f"the replica group could not form: {_one_line(error)}")
    except RuntimeError:
        time.sleep(4 * _LOOK_SECONDS)  # if index 0 was lost, the watch ends this process now
        raise


def _dial(job: Job, host: str, port: int) -> Any:
    """A connection to the group's store, which index 0 serves."""
    return distributed.PrefixStore(f"replica-{job.process}", dial_store(host, port, lambda: _check(job)))


def _watch_start(job: Job, store: Any) -> None:
    """Until this process's version is active, end this process if another process of the group is started
    again, because the group could never form. The agent then starts this process again, too. Later losses are
    reported to the master.

    Args:
        job: the job of this process.
        store: the watch's own connection to the group's store, made before this process joins. A connection
            that the thread made later could be one to the store of the next index 0, which knows of no loss.
    """

    def watch() -> None:
        try:
            while not (job.active or store.check([_AGAIN])):
                time.sleep(_LOOK_SECONDS)
        except RuntimeError as error:
            log.warning("index 0 of the replica group does not answer: %s", _one_line(error))
        if not job.active and not job.terminated:
            _start_again("a process of the replica group was lost before its version began")

    threading.Thread(target=watch, name="replica-start", daemon=True).start()


def _check(job: Job) -> None:
    if job.terminated:
        raise SystemExit(TERMINATED)


def _start_again(reason: str) -> None:
    """End this process at once, whatever its main thread is waiting for: it has no state to lose yet."""
    log.warning("%s; this one ends, to be started again", reason)
    logging.shutdown()
    os._exit(CLUSTER_LOST_EXIT_CODE)


def _register_backend(own: str) -> None:
    def build(store: Any, rank: int, size: int, timeout: Any) -> Any:
        return build_gloo(store, rank, size, own, timeout)

    distributed.Backend.register_backend(_BACKEND, build, devices=["cpu"])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:500]
