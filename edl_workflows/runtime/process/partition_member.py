"""A replica that holds one of several Leases, and with it a partition of all jobs.

The rules are those of `edl_workflows.core.partitions`. Each attempt lists the Leases, gives up the jobs of
new replicas, and renews the replica's own Lease, in which it acknowledges them.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import structlog

from edl_workflows.core.exceptions import AlreadyExistsError, ConflictError, EdlError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.partitions import LeaseView, SlotLease, lease_name
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import LEASES, Object, Scope
from edl_workflows.runtime.process.leader import Election, Elector
from edl_workflows.runtime.process.partition import Partition

log = structlog.get_logger(__name__)

NEVER = float("-inf")


def hasten_take_over(election: Election) -> Election:
    """The same election, in which a lost replica's partition is taken over within 15 s: a lease ends within
    10 s of its last renewal, and others see the renewal and the end within 1.5 s each."""
    return replace(election, lease_seconds=10.0, renew_seconds=7.0, retry_seconds=1.5)


class PartitionMember(Elector):
    """One replica. It leads its partition, and changes `partition` with what it sees.

    The Lease of the first slot has the election's name, as that of a controller without partitions, which
    acknowledges nobody. So members wait until it ends.

    Args:
        cluster: the cluster with the Leases.
        election: their name, and the times.
        slots: number of slots.
        partition: the jobs that this replica owns.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        cluster: Cluster,
        election: Election,
        slots: int,
        partition: Partition,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(cluster, election, clock)
        self._slots = slots
        self._partition = partition
        self._view = LeaseView()
        self._slot: int | None = None
        self._begun = False
        """Whether it acts on its partition."""
        self._held_until = NEVER
        """When it gives the slot up unless it has renewed the Lease; others take it later."""
        self._acknowledged: frozenset[str] = frozenset()
        self._identities = 1

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until this process owns a partition. Return False if `stop` was set first."""
        if super().acquire(stop):
            return True
        if self._slot is not None:
            self._give_back()
        return False

    def _acquire(self, now: float, /) -> bool:
        if self._slot is None:
            self._take_slot(self._list(now))
        elif now >= self._held_until:
            self._lapse()
        if self._slot is None:
            return False
        leases = self._list(self._clock())  # also after the slot was taken: it shows who was there before
        own = leases.get(self._slot)
        if own is None or own["spec"].get("holderIdentity") != self._election.identity:
            self._lapse()
            return False
        finished = not self._begun or self._partition.observe(self._view.live)
        holders = self._view.find_holders(self._election.identity)
        self._acknowledged = holders if finished else self._acknowledged & holders
        client.replace(self._cluster, self._renewed(own))
        if self._clock() >= self._held_until:
            self._lapse()
            return False
        self._held_until = now + self._election.renew_seconds
        if not self._begun and self._view.is_acknowledged(self._election.identity):
            self._begun = True
            self._partition.begin(self._slot, self._view.live)
            log.info("partition of the jobs acquired", lease=self._name, identity=self._election.identity)
        return self._begun

    def _take_slot(self, leases: dict[int, Object]) -> None:
        """Take a free slot, if there is one."""
        for slot in self._view.find_free(self._slots):
            self._name = lease_name(self._election.name, slot)
            now = self._clock()
            try:
                if slot in leases:
                    client.replace(self._cluster, self._renewed(leases[slot]))
                else:
                    client.create(self._cluster, self._renewed(self._manifest()))
            except (AlreadyExistsError, ConflictError):
                continue  # another replica was faster
            except EdlError:
                # It may be written: others may acknowledge an identity that has another slot in the end.
                self._change_identity()
                raise
            self._slot, self._held_until = slot, now + self._election.renew_seconds
            return

    def _lapse(self) -> None:
        """Become a candidate with another identity: others may have taken over its partition."""
        log.warning("lease not renewed in time", lease=self._name, identity=self._election.identity)
        self._change_identity()
        self._slot, self._begun, self._held_until = None, False, NEVER
        self._acknowledged = frozenset()

    def _change_identity(self) -> None:
        self._identities += 1
        identity = f"{self._election.identity.partition('+')[0]}+{self._identities}"
        self._election = replace(self._election, identity=identity)

    def _list(self, began: float) -> dict[int, Object]:
        """The Leases by slot. They become the view."""
        scope = Scope(LEASES, self._election.namespace)
        leases = dict(_numbered(self._election.name, client.list_objects(self._cluster, scope).items))
        seconds = self._election.lease_seconds
        seen = [_seen(slot, lease, seconds) for slot, lease in leases.items()]
        self._view = self._view.update(seen, began, self._clock())
        return leases

    def _renewed(self, lease: Object) -> Object:
        metadata = lease["metadata"]
        annotations = (metadata.get("annotations") or {}) | {
            names.ACKNOWLEDGED_ANNOTATION: ",".join(sorted(self._acknowledged))
        }
        return lease | {
            "metadata": metadata | {"annotations": annotations},
            "spec": self._spec(lease.get("spec") or {}),
        }


def _numbered(name: str, leases: Iterable[Object]) -> Iterator[tuple[int, Object]]:
    for lease in leases:
        base, _, number = lease["metadata"]["name"].rpartition("-")
        if lease["metadata"]["name"] == name:
            yield 0, lease
        elif base == name and number.isdecimal():
            yield int(number), lease


def _seen(slot: int, lease: Object, default_seconds: float) -> SlotLease:
    spec: dict[str, Any] = lease.get("spec") or {}
    annotations = lease["metadata"].get("annotations") or {}
    return SlotLease(
        slot,
        spec.get("holderIdentity") or "",
        lease["metadata"]["resourceVersion"],
        float(spec.get("leaseDurationSeconds") or default_seconds),
        frozenset(filter(None, annotations.get(names.ACKNOWLEDGED_ANNOTATION, "").split(","))),
    )
