"""Leader election with a ``coordination.k8s.io/v1`` Lease, by the rules of client-go.

The `kubernetes` package's own ``leaderelection`` (36.0) only supports ConfigMap annotations, which every
other implementation has given up; it compares wall clocks of different machines and cannot be stopped.

Clocks differ, so a candidate ignores the times in a lease: it measures for how long it has itself seen no
renewal. A leader measures the time since it sent its last successful renewal, so `Elector.leading` becomes
False in time even while a renewal hangs.
"""

import datetime as dt
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import structlog

from edl_workflows.core.exceptions import EdlError, ForbiddenError
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import CallPolicy, Cluster
from edl_workflows.runtime.kube.resources import LEASES, Object

log = structlog.get_logger(__name__)


class LeadershipLostError(EdlError):
    """The lease could not be renewed in time, so this process must not write any more. It exits and is
    restarted as a candidate."""


def _identity() -> str:
    return f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True)
class Election:
    """The lease to compete for, and its times. The defaults are those of client-go.

    Attributes:
        namespace: namespace of the Lease.
        name: name of the Lease, one for each installation of the controller.
        identity: name of this candidate.
        lease_seconds: time after which another candidate may take over a lease that is not renewed.
        renew_seconds: how long a leader leads after its last renewal. This is shorter than `lease_seconds`,
            so that there are never two leaders.
        retry_seconds: time between attempts.
    """

    namespace: str
    name: str = names.CONTROLLER
    identity: str = field(default_factory=_identity)
    lease_seconds: float = 15.0
    renew_seconds: float = 10.0
    retry_seconds: float = 2.0


class Elector:
    """One candidate.

    Args:
        cluster: the cluster with the Lease.
        election: the lease and the times.
        clock: monotonic seconds.
    """

    def __init__(
        self, cluster: Cluster, election: Election, clock: Callable[[], float] = time.monotonic
    ) -> None:
        # The client does not retry failed renewals, which `keep` does at its own interval, and its timeout is
        # shorter than the lease.
        policy = CallPolicy(attempts=1, read_seconds=election.renew_seconds / 2)
        self._cluster = cluster.with_policy(policy)
        self._election = election
        self._name = election.name
        self._clock = clock
        self._leads_until = float("-inf")
        self._seen: tuple[str, float] = ("", float("-inf"))

    @property
    def leading(self) -> bool:
        """Whether this process may write now."""
        return self._clock() < self._leads_until

    def acquire(self, stop: threading.Event) -> bool:
        """Wait until this process leads. Return False if `stop` was set first."""
        log.info("waiting for leadership", lease=self._election.name, identity=self._election.identity)
        while not stop.is_set():
            if self.attempt():
                log.info("leading", identity=self._election.identity)
                return True
            stop.wait(self._election.retry_seconds)
        return False

    def keep(self, stop: threading.Event) -> None:
        """Renew the lease until `stop` is set.

        Raises:
            LeadershipLostError: no renewal succeeded in time, or another process leads.
        """
        while not stop.wait(self._election.retry_seconds):
            if not self.attempt() and not self.leading:
                raise LeadershipLostError(
                    f"leadership lost: lease {self._election.namespace}/{self._name} could not be "
                    f"renewed within {self._election.renew_seconds:g} s; restart this process"
                )

    def attempt(self) -> bool:
        """Try once to acquire or renew the lease. Return whether this process holds it."""
        began = self._clock()
        try:
            held = self._acquire(began)
        except ForbiddenError as error:
            log.error(  # noqa: TRY400 - missing rights need no traceback
                "this process can't lead: its account may not use the leases; apply the manifests of this "
                "version, `edl install … --print | kubectl apply -f -`",
                lease=self._name,
                error=str(error),
            )
            return False
        except EdlError as error:
            # The state of the lease is unknown. (A conflict means that another process wrote it between our
            # read and our write.) If this process leads, it continues to lead until its time is over.
            log.info("lease request failed", lease=self._name, error=str(error))
            return False
        self._leads_until = began + self._election.renew_seconds if held else float("-inf")
        return held

    def release(self) -> None:
        """Try to give the lease back, so that a successor does not have to wait until it expires."""
        if not self.leading:
            return
        self._leads_until = float("-inf")
        self._give_back()

    def _give_back(self) -> None:
        try:
            lease = client.get(self._cluster, LEASES, self._name, self._election.namespace)
            if lease["spec"].get("holderIdentity") == self._election.identity:
                client.replace(self._cluster, lease | {"spec": lease["spec"] | {"holderIdentity": ""}})
        except EdlError as error:
            log.warning("lease not released", error=str(error))

    def _acquire(self, now: float, /) -> bool:
        """Try once to acquire or renew the lease, from `now` on."""
        election = self._election
        lease = client.find(self._cluster, LEASES, election.name, election.namespace)
        if lease is None:
            client.create(self._cluster, self._manifest())
            return True
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        version = lease["metadata"]["resourceVersion"]
        if version != self._seen[0]:
            self._seen = (version, now)
        alive = now < self._seen[1] + float(spec.get("leaseDurationSeconds") or election.lease_seconds)
        if holder not in ("", election.identity) and alive:
            return False
        client.replace(self._cluster, lease | {"spec": self._spec(spec)})
        return True

    def _manifest(self) -> Object:
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._election.namespace},
            "spec": self._spec({}),
        }

    def _spec(self, old: dict[str, Any]) -> dict[str, Any]:
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        ours = old.get("holderIdentity") == self._election.identity
        return old | {
            "holderIdentity": self._election.identity,
            "leaseDurationSeconds": max(1, round(self._election.lease_seconds)),
            "renewTime": now,
            "acquireTime": old.get("acquireTime") if ours else now,
            "leaseTransitions": int(old.get("leaseTransitions") or 0) + (0 if ours or not old else 1),
        }
