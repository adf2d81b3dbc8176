"""The group of a collective job's members over Gloo. All waits end at once when the group is over.

It relies on this behavior of PyTorch 2.15, which was measured with processes on the loopback of one machine:

* `ProcessGroupGloo` can be created directly from a store, any number of times in one process. Its constructor
  waits until all members have called it, and can't be interrupted.
* If a member is killed during an operation, a neighbor's operation fails within milliseconds ("Connection
  reset by peer"), while the other members may wait for the whole time-out. ``abort`` from another thread ends
  the operations that have begun. An operation that begins afterwards may wait again, so ``abort`` is repeated
  until all operations have ended.
* The destructor waits for the operations that have begun.
* Gloo does not support 16-bit integers, so states are sent as bytes.
"""

import contextlib
import datetime as dt
import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import distributed

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.training.collective.regrouping import CannotTakePartError, Place

WAIT_LIMIT = dt.timedelta(hours=1)
"""Time limit of an operation. It is long because members wait for a slow one; `GlooGroup.interrupt` ends the
wait for a dead one."""
LEAVE_SECONDS = 10.0
"""Longest wait for a group's threads before the process ends."""
_CONNECT = dt.timedelta(seconds=30)
"""Time limit for connecting the members once all of them have arrived, and for a call to the store."""
_DIAL_SECONDS = 1.0
"""Time limit of one attempt to reach rank 0."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 0.5
"""Seconds between two attempts."""
_ABORT_SECONDS = 0.02
"""Interval at which ``abort`` is repeated."""

T = TypeVar("T")


class GlooGroup:
    """The members of a version. `form` connects them; `interrupt` ends all waits.

    The methods raise UnavailableError when the group is broken or interrupted.

    Args:
        place: this member's place in the group.

    Attributes:
        device: device of the tensors that are reduced.
    """

    def __init__(self, place: Place) -> None:
        self.device = torch.device("cpu")
        self.version = place.version
        self.rank = place.rank
        self.size = place.size
        self._place = place
        self._changed = threading.Condition()
        self._reason = ""
        self._failure: UnavailableError | None = None
        self._server: Any = None
        self._group: Any = None
        self._running: set[_Operation] = set()
        self._waits_since = 0.0
        self._ending: threading.Thread | None = None

    @property
    def quiet(self) -> bool:
        """Whether all operations that have begun have also ended, so that their tensors may be reused."""
        with self._changed:
            return not self._running

    @property
    def waiting(self) -> float:
        """Seconds for which this member has waited for the others; 0 if it is not waiting."""
        since = self._waits_since
        return time.monotonic() - since if since else 0.0

    def form(self) -> None:
        """Connect the members; waits for all of them. Rank 0 serves the store over which they exchange their
        addresses."""
        own = own_address(self._place.addresses[self.rank].rpartition(":")[0])
        host, _, port = self._place.addresses[0].rpartition(":")
        if self.rank == 0:
            host = own
            self._server = collectively(lambda: serve_store(own, int(port)))
        # Connect in a separate thread, since neither the store's calls nor the group's constructor can be
        # interrupted. If this group is over before they return, the thread ends by itself: the store's server
        # is closed or dead, and connecting has a time limit.
        connect = threading.Thread(
            target=self._connect, args=(own, host, int(port)), name=f"form-v{self.version}", daemon=True
        )
        connect.start()
        with self._wait_for_others():
            self._changed.wait_for(lambda: self._group is not None or self._failure or self._reason)
            self._check()

    def interrupt(self, reason: str) -> None:
        """End all present and future waits, because the group is over. May be called from any thread."""
        with self._changed:
            if self._reason:
                return
            self._reason = reason
            self._changed.notify_all()
            self._ending = threading.Thread(target=self._abort, name=f"abort-v{self.version}", daemon=True)
            self._ending.start()

    def close(self) -> None:
        """Disconnect."""
        self.interrupt(f"the group of version {self.version} is closed")
        self._server = None

    def leave(self) -> None:
        """Disconnect before the process ends. The connections of Gloo end with the process, so that this only
        waits for an `interrupt` that has begun."""
        if self._ending is not None:
            self._ending.join(LEAVE_SECONDS)

    def all_reduce(self, tensor: torch.Tensor) -> "_Operation":
        """Begin to sum a tensor over the members, in place. Returns the operation, for `wait`."""
        options = distributed.AllreduceOptions()
        options.timeout = WAIT_LIMIT
        return self._begin(lambda group: group.allreduce([tensor], options))

    def wait(self, begun: "Sequence[_Operation]") -> None:
        """Wait until operations are done."""
        with self._wait_for_others():
            for operation in begun:
                while not (operation.ended or self._reason):
                    self._changed.wait()
                self._check()
        for operation in begun:
            collectively(operation.work.wait)

    def broadcast(self, tensor: torch.Tensor, root: int = 0) -> torch.Tensor:
        """The tensor of rank `root`. The other members pass a tensor of the same type and shape."""
        flat = tensor.detach().contiguous().to(self.device).reshape(-1).view(torch.uint8)
        if flat.numel():
            options = distributed.BroadcastOptions()
            options.rootRank, options.timeout = root, WAIT_LIMIT
            self.wait([self._begin(lambda group: group.broadcast([flat], options))])
        received = flat.view(tensor.dtype).reshape(tensor.shape)
        return received.cpu() if tensor.device.type == "cpu" else received

    def broadcast_bytes(self, content: bytes, root: int = 0) -> bytes:
        """The bytes of rank `root`."""
        (size,) = self.broadcast(torch.tensor([len(content)]), root).tolist()
        buffer = bytearray(content) if self.rank == root else bytearray(size)
        received = self.broadcast(torch.frombuffer(buffer, dtype=torch.uint8), root)
        return bytes(received.cpu().numpy().data)

    def gather(self, number: int) -> list[int]:
        """The numbers of all members, by rank."""
        numbers = torch.zeros(self.size, dtype=torch.int64, device=self.device)
        numbers[self.rank] = number
        self.wait([self.all_reduce(numbers)])
        return list(map(int, numbers.tolist()))

    @contextlib.contextmanager
    def _wait_for_others(self) -> Iterator[None]:
        with self._changed:
            self._waits_since = time.monotonic()
            try:
                yield
            finally:
                self._waits_since = 0.0

    def _begin(self, begin: Callable[[Any], Any]) -> "_Operation":
        operation = _Operation()
        with self._changed:
            self._check()
            self._running.add(operation)
        try:
            operation.work = collectively(lambda: begin(self._group))
            self._watch(operation)
        except BaseException:
            self._end(operation)
            raise
        return operation

    def _watch(self, operation: "_Operation") -> None:
        """Arrange that `_end` is called when the operation ends."""
        operation.work.get_future().add_done_callback(lambda _: self._end(operation))

    def _end(self, operation: "_Operation") -> None:
        with self._changed:
            operation.ended = True
            self._running.discard(operation)
            self._changed.notify_all()

    def _check(self) -> None:
        if self._reason:
            raise UnavailableError(self._reason)
        if self._failure is not None:
            raise self._failure

    def _connect(self, own: str, host: str, port: int) -> None:
        try:
            group = collectively(lambda: self._meet_and_connect(own, host, port))
        except UnavailableError as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()
            return
        with self._changed:
            if not self._reason:
                self._group = group
                self._changed.notify_all()

    def _meet_and_connect(self, own: str, host: str, port: int) -> Any:
        store = dial_store(host, port, self._check)
        prefix = distributed.PrefixStore(f"version-{self.version}", store)
        prefix.set(f"arrived-{self.rank}", "")
        everybody = [f"arrived-{rank}" for rank in range(self.size)]
        while not _all_there(prefix, everybody):
            self._check()
        return self._build(prefix, own)

    def _build(self, store: Any, own: str) -> Any:
        return build_gloo(store, self.rank, self.size, own, _CONNECT)

    def _abort(self) -> None:
        """Abort until all operations have ended, then free the group; its destructor would wait for them."""
        while not self.quiet:
            if self._group is not None:
                self._group.abort()
            with self._changed:
                self._changed.wait_for(lambda: not self._running, _ABORT_SECONDS)
        if self._group is not None:
            self._group.abort()
        self._group = None


class NoGroup:
    """A group of one member, for the warm-up before the real group forms."""

    rank = 0
    device = torch.device("cpu")

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over one member."""
        return tensor

    def wait(self, begun: Sequence[Any]) -> None:
        """Do nothing: there is nothing to wait for."""


class _Operation:
    """A collective operation that has begun."""

    def __init__(self) -> None:
        self.work: Any = None
        self.ended = False


def _all_there(store: Any, keys: list[str]) -> bool:
    try:
        store.wait(keys, _CONNECT)
    except distributed.DistStoreError:  # the time is over
        return False
    return True


def build_gloo(store: Any, rank: int, size: int, own: str, limit: dt.timedelta) -> Any:
    """PyTorch's group over Gloo, which listens on this member's own address only.

    Args:
        store: the store through which the members find each other.
        rank: rank of this member.
        size: number of members.
        own: address of this member.
        limit: time limit for connecting, and for operations that set none of their own.
    """
    options = distributed.ProcessGroupGloo._Options()  # noqa: SLF001 - has no public name
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=own)]  # noqa: SLF001
    options._timeout = limit  # noqa: SLF001
    return distributed.ProcessGroupGloo(store, rank, size, options)


def dial_store(host: str, port: int, check: Callable[[], object]) -> Any:
    """Connect to another member's store, which may not listen yet. Retries until `check` raises."""
    pause = _FIRST_PAUSE
    while True:
        check()
        with contextlib.suppress(OSError):
            socket.create_connection((host, port), _DIAL_SECONDS).close()
            return distributed.TCPStore(host, port, is_master=False, timeout=_CONNECT)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


_SERVED: "weakref.WeakValueDictionary[tuple[str, int], Any]" = weakref.WeakValueDictionary()
"""The stores that this process serves, by address. A store that was made for the replica group is reused for
the members of a version, since the process has only one port for both."""


def serve_store(own: str, port: int) -> Any:
    """The store, served on this member's own address only. It is closed when nothing refers to it any
    more.
    """
    store = _SERVED.get((own, port))
    if store is None:
        store = _SERVED[own, port] = _listen_as_store(own, port)
    return store


def _listen_as_store(own: str, port: int) -> Any:
    try:
        listener = _listen(own, port)
    except OSError as error:
        raise CannotTakePartError(f"rank 0 can't listen on {own}:{port}: {error}") from error
    return distributed.TCPStore(
        own,
        port,
        is_master=True,
        timeout=_CONNECT,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def own_address(host: str) -> str:
    """The address to listen on: the one to which `host` resolves if it belongs to this machine, else the one
    to which the machine's own name resolves. In a pod network, `host` may resolve to a Service."""
    for name in (host, socket.gethostname()):
        with contextlib.suppress(OSError):
            address = str(socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)[0][4][0])
            _listen(address, 0).close()
            return address
    raise UnavailableError(f"neither {host} nor {socket.gethostname()} is an address of this machine")


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family)


def collectively(work: Callable[[], T]) -> T:
    """Return the result of `work`, and convert errors of PyTorch's group to UnavailableError."""
    try:
        return work()
    except RuntimeError as error:  # the base of all errors of PyTorch's groups, such as DistError
        raise UnavailableError(" ".join(str(error).split())[:500]) from error
