"""Assigns ports of the machine to ports of Services and pods. This module has no I/O.

A port of a Service gets a host port when a pod starts that the Service selects or whose variables or
arguments contain the Service's address. The selected pod listens on the host port. The host port stays
assigned while any of these pods exists, so that a rewritten address remains correct while pods come and go,
and afterwards for a limited number of Services without pods (`IDLE_KEPT`). If a Service selects several pods,
the oldest gets the Service's port and the others get ports of their own: there is no load balancing.

A name may be used before its Service exists, since controllers create pods and Services in any order. In that
case the port is reserved for a pod of that name or a Service that is created later.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.local.pods import Pod, Service, target_port
from edl_workflows.local.selection import ServiceSelection

LOOPBACK = "127.0.0.1"
IDLE_KEPT = 256
"""Number of ports that are kept for Services without pods, so that a new pod gets the port of its
predecessor."""
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class NetworkObjects:
    """The Services, and the pods that occupy ports: those on the node whose processes may still be running.

    Attributes:
        services: by key.
        pods: by key.
        selection: an index of these Services, if the caller has one; it may contain more pods.
    """

    services: Mapping[str, Service] = field(default_factory=dict)
    pods: Mapping[str, Pod] = field(default_factory=dict)
    selection: ServiceSelection | None = None

    def named(self, namespace: str, service: str) -> Service | None:
        return self.services.get(f"{namespace}/{service}")

    def selecting(self, pod: Pod) -> list[Service]:
        """The Services that select a pod, oldest first."""
        return sorted((self.selection or self._own).selecting(pod), key=_age)

    def behind(self, service: Service) -> list[Pod]:
        """The pods that a Service selects, oldest first."""
        return sorted(self._own.behind(service), key=_age)

    def served(self) -> list[Service]:
        """The Services that select any of the pods."""
        services = {id(service): service for pod in self.pods.values() for service in self.selecting(pod)}
        return list(services.values())

    @functools.cached_property
    def _own(self) -> ServiceSelection:
        return ServiceSelection.of(() if self.selection else self.services.values(), self.pods.values())


def _age(obj: Pod | Service) -> tuple[datetime, str]:
    return (obj.metadata.creation_timestamp or _EPOCH, obj.metadata.name)


def service_key(namespace: str, service: str, port: int) -> str:
    """Key of the assignment of a Service's port."""
    return f"svc/{namespace}/{service}/{port}"


def pod_key(uid: str, port: int) -> str:
    """Key of the assignment of a pod's port."""
    return f"pod/{uid}/{port}"


class PortAssignments:
    """The assignments.

    Args:
        assigned: assignments that an earlier process stored, by `service_key` and `pod_key`.
        allocate: returns a free host port, given those that are taken.
        mentions: by pod uid, the keys of the Service ports with whose addresses the pod was started, as an
            earlier process stored them.
    """

    def __init__(
        self,
        assigned: Mapping[str, int],
        allocate: Callable[[frozenset[int]], int],
        mentions: Mapping[str, Iterable[str]] | None = None,
    ) -> None:
        self.assigned = dict(assigned)
        self.mentions = {uid: set(keys) for uid, keys in (mentions or {}).items()}
        self._allocate = allocate

    def of_pod(self, pod: Pod, world: NetworkObjects) -> dict[int, int]:
        """The host ports of a pod's container ports: those that it declares and those that Services target.
        Every call returns the same.

        Raises:
            UnavailableError: there are too few free ports; the pod then gets none.
        """
        before = dict(self.assigned)
        try:
            return {port: self._pod_port(pod, port, world) for port in sorted(_ports(pod, world))}
        except UnavailableError:
            self.assigned = before
            raise

    def _pod_port(self, pod: Pod, port: int, world: NetworkObjects) -> int:
        key = pod_key(pod.metadata.uid, port)
        if key not in self.assigned:
            free = (offer for offer in self._offers(pod, port, world) if not self._held(offer, pod, world))
            chosen = next(free, None)
            self.assigned[key] = self._fresh() if chosen is None else chosen
        for service, number in _leading_to(pod, port, world):
            self.assigned.setdefault(
                service_key(pod.metadata.namespace, service.metadata.name, number), self.assigned[key]
            )
        return self.assigned[key]

    def _offers(self, pod: Pod, port: int, world: NetworkObjects) -> Iterator[int]:
        """Reserved host ports that the pod may take, best first: those of its Services, then one reserved for
        its own name."""
        namespace, name = pod.metadata.namespace, pod.metadata.name
        keys = [
            service_key(namespace, service.metadata.name, number)
            for service, number in _leading_to(pod, port, world)
        ]
        if world.named(namespace, name) is None:
            keys.append(service_key(namespace, name, port))
        return (self.assigned[key] for key in keys if key in self.assigned)

    def _held(self, host_port: int, pod: Pod, world: NetworkObjects) -> bool:
        holders = self._holders(host_port) - {pod.metadata.uid}
        return any(peer.metadata.uid in holders for peer in world.pods.values())

    def of_service(self, namespace: str, service: str, port: int, world: NetworkObjects) -> int:
        """The host port of a Service's port. The first call assigns it: the port of the Service's pod, if
        there is one, or else a free one. Later calls return the same."""
        key = service_key(namespace, service, port)
        if key not in self.assigned:
            host_port = self.find_backing(namespace, service, port, world)
            self.assigned[key] = self._fresh() if host_port is None else host_port
        return self.assigned[key]

    def find_backing(self, namespace: str, service: str, port: int, world: NetworkObjects) -> int | None:
        """The host port on which the oldest pod behind a Service's port listens; None if there is none."""
        return next(self._backing(namespace, service, port, world), None)

    def _backing(self, namespace: str, service: str, port: int, world: NetworkObjects) -> Iterator[int]:
        named_service = world.named(namespace, service)
        if named_service is None:
            namesake = world.pods.get(f"{namespace}/{service}")
            candidates = [(namesake, port)] if namesake else []
        else:
            offered = next(
                (service_port for service_port in named_service.spec.ports if service_port.port == port), None
            )
            pods = world.behind(named_service) if offered else []
            candidates = [(pod, target_port(pod, offered) or 0) for pod in pods if offered]
        for pod, number in candidates:
            if (assigned := self.assigned.get(pod_key(pod.metadata.uid, number))) is not None:
                yield assigned

    def mention(self, uid: str, namespace: str, service: str, port: int, world: NetworkObjects) -> int:
        """Like `of_service`, for a pod that is started with this address: the port stays reserved while the
        pod exists."""
        self.mentions.setdefault(uid, set()).add(service_key(namespace, service, port))
        return self.of_service(namespace, service, port, world)

    def table(self, world: NetworkObjects, ips: Mapping[str, str]) -> dict[str, str]:
        """A map from ``host:port`` to ``127.0.0.1:<host port>``, with hosts in canonical spelling.

        Args:
            world: Services and pods.
            ips: IPs by pod uid.
        """
        host_ports: dict[str, int] = {}
        pods = {pod.metadata.uid: pod for pod in world.pods.values()}
        for key, number in self.assigned.items():
            kind, first, *rest = key.split("/")
            if kind == "svc":
                host_ports[f"{rest[0]}.{first}.svc:{rest[1]}"] = number
            elif first in pods:
                host_ports.update((f"{host}:{rest[0]}", number) for host in _pod_hosts(pods[first], ips))
        for service in world.served():
            host_ports.update(self._service_addresses(service, world))
        return {address: f"{LOOPBACK}:{number}" for address, number in host_ports.items()}

    def forwards(self, world: NetworkObjects) -> dict[int, int]:
        """The forwards that are needed: for each Service's host port on which the Service's pod does not
        listen, the host port on which the pod listens."""
        targets: dict[int, int] = {}
        for service in world.served():
            for port in service.spec.ports:
                namespace, name = service.metadata.namespace, service.metadata.name
                reserved = self.assigned.get(service_key(namespace, name, port.port))
                backing = list(self._backing(namespace, name, port.port, world))
                if reserved is None or not backing or reserved in backing or self._taken(reserved, world):
                    continue
                targets[reserved] = backing[0]
        return targets

    def _taken(self, host_port: int, world: NetworkObjects) -> bool:
        uids = {pod.metadata.uid for pod in world.pods.values()}
        return bool(self._holders(host_port) & uids)

    def _holders(self, host_port: int) -> set[str]:
        return {
            key.split("/")[1]
            for key, number in self.assigned.items()
            if number == host_port and key.startswith("pod/")
        }

    def _service_addresses(self, service: Service, world: NetworkObjects) -> Iterator[tuple[str, int]]:
        namespace, name = service.metadata.namespace, service.metadata.name
        for port in service.spec.ports:
            reserved = self.assigned.get(service_key(namespace, name, port.port))
            backing = list(self._backing(namespace, name, port.port, world))
            # Another Service may target the same port of the pod, which can listen on only one host port.
            if backing:
                yield f"{name}.{namespace}.svc:{port.port}", reserved if reserved in backing else backing[0]

    def release(self, world: NetworkObjects) -> None:
        """Remove the assignments of Services and pods that are gone, unless an existing pod was started with
        the address, and those of Services without pods beyond `IDLE_KEPT`."""
        uids = {pod.metadata.uid for pod in world.pods.values()}
        self.mentions = {uid: keys for uid, keys in self.mentions.items() if uid in uids}
        reserved_keys = {key for keys in self.mentions.values() for key in keys}
        for key in list(self.assigned):
            kind, first, *rest = key.split("/")
            lives = (
                first in uids
                if kind == "pod"
                else key in reserved_keys or world.named(first, rest[0]) is not None
            )
            if not lives:
                del self.assigned[key]
        reserved_keys |= self._in_use(world)
        idle = [key for key in self.assigned if key.startswith("svc/") and key not in reserved_keys]
        for key in idle[:-IDLE_KEPT]:
            del self.assigned[key]

    def _in_use(self, world: NetworkObjects) -> set[str]:
        """The keys of the Services that have a pod."""
        return {
            service_key(service.metadata.namespace, service.metadata.name, service_port.port)
            for service in world.served()
            for service_port in service.spec.ports
        }

    def _fresh(self) -> int:
        return self._allocate(frozenset(self.assigned.values()))


def _pod_hosts(pod: Pod, ips: Mapping[str, str]) -> Iterator[str]:
    if pod.metadata.uid in ips:
        yield ips[pod.metadata.uid]
    if pod.spec.hostname and pod.spec.subdomain:
        yield f"{pod.spec.hostname}.{pod.spec.subdomain}.{pod.metadata.namespace}.svc"


def _leading_to(pod: Pod, port: int, world: NetworkObjects) -> list[tuple[Service, int]]:
    return [
        (service, service_port.port)
        for service in world.selecting(pod)
        for service_port in service.spec.ports
        if target_port(pod, service_port) == port
    ]


def _ports(pod: Pod, world: NetworkObjects) -> Iterable[int]:
    declared = {port.container_port for container in pod.spec.all_containers for port in container.ports}
    served = {target_port(pod, port) for service in world.selecting(pod) for port in service.spec.ports}
    return declared | {port for port in served if port is not None}
