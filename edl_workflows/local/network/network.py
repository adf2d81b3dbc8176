"""Stores the port assignments of the running cluster and publishes the service map to the pods."""

import asyncio
import ipaddress
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import structlog

from edl_workflows.local import files
from edl_workflows.local.network.forward import Forwarders
from edl_workflows.local.network.host_ports import HostPorts
from edl_workflows.local.network.ports import LOOPBACK, NetworkObjects, PortAssignments
from edl_workflows.local.network.rewrite import rewrite_addresses
from edl_workflows.local.pods import Pod, Service
from edl_workflows.local.selection import ServiceSelection

_FIRST_IP = int(ipaddress.IPv4Address("127.64.0.1"))
_LAST_IP = int(ipaddress.IPv4Address("127.127.255.254"))
_PUBLISH_SECONDS = 0.05
_LINKED_SERVICES = 100
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Attachment:
    """A pod's address and, by container port, the host ports on which it must listen."""

    ip: str
    ports: Mapping[int, int]


class Network:
    """Assigns addresses and ports to pods, rewrites addresses, and publishes the service map.

    Args:
        folder: folder of ``network.json`` (assignments) and ``services.json`` (the map that pods read).
        services: the cluster's Services by key, kept current by the caller.
        pods: pods whose processes may be running, by key, kept current by the caller.
        selection: index of these Services, kept current by the caller.
    """

    def __init__(
        self,
        folder: Path,
        services: Callable[[], Mapping[str, Service]],
        pods: Callable[[], Mapping[str, Pod]],
        selection: ServiceSelection | None = None,
    ) -> None:
        self.map_file = folder / "services.json"
        self._file = folder / "network.json"
        kept = files.read_json(self._file) or {}
        self._services = services
        self._pods = pods
        self._selection = selection
        self._host_ports = HostPorts(crc32(str(folder).encode()), kept.get("blocks", ()))
        self._ports = PortAssignments(
            kept.get("assigned", {}), self._host_ports.allocate, kept.get("mentions", {})
        )
        self._forwarders = Forwarders()
        self._ips: dict[str, str] = dict(kept.get("ips", {}))
        self._changed = asyncio.Event()
        self._kept: object = None
        self._published: object = None

    def address(self, pod: Pod) -> str:
        """A pod's address. It is stored, so every call returns the same one."""
        uid = pod.metadata.uid
        if uid not in self._ips:
            self._ips[uid] = self._next_ip()
            self.publish()
        return self._ips[uid]

    def attach(self, pod: Pod) -> Attachment:
        """A pod's address and ports. They are stored, so every call returns the same ones.

        Raises:
            UnavailableError: the machine has no free port.
        """
        ip = self.address(pod)
        ports = self._ports.of_pod(pod, self._world())
        for host_port in ports.values():
            self._forwarders.release(host_port)
        self.publish()
        return Attachment(ip, ports)

    def rewriter(self, pod: Pod) -> Callable[[str], str]:
        """A function that replaces cluster addresses in a container's variables and arguments with the
        current ones on this machine."""
        namespace, uid = pod.metadata.namespace, pod.metadata.uid
        world = self._world()
        table = self._table(world)

        def lookup(host: str, port: int, explicit: bool) -> str | None:
            address = table.get(f"{host}:{port}")
            parts = host.removesuffix(".svc").split(".")
            if not explicit or len(parts) != len(("name", "namespace")):
                return address
            mentioned = self._ports.mention(uid, parts[1], parts[0], port, world)
            return address or f"{LOOPBACK}:{mentioned}"

        return lambda text: rewrite_addresses(text, namespace, lookup)

    def find_port(self, namespace: str, service: str, port: int) -> int | None:
        """The host port on which the pod behind a Service's port listens; None if there is no such pod."""
        return self._ports.find_backing(namespace, service, port, self._world())

    def service_variables(self, pod: Pod) -> dict[str, str]:
        """``PS_0_SERVICE_HOST`` and ``PS_0_SERVICE_PORT`` for the namespace's Services that have a cluster
        IP, as kubelet sets them. Only for the oldest `_LINKED_SERVICES`, since thousands would not fit into
        an environment."""
        world, uid = self._world(), pod.metadata.uid
        variables: dict[str, str] = {}
        for service in itertools.islice(_linked(world, pod.metadata.namespace), _LINKED_SERVICES):
            meta, port = service.metadata, service.spec.ports[0].port
            prefix = meta.name.upper().replace("-", "_")
            host_port = self._ports.mention(uid, meta.namespace, meta.name, port, world)
            variables |= {f"{prefix}_SERVICE_HOST": LOOPBACK, f"{prefix}_SERVICE_PORT": str(host_port)}
        return variables

    def touch(self) -> None:
        """Publish the map soon, because something has changed."""
        self._changed.set()

    async def run(self) -> None:
        """Follow changes of Services and pods until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._follow()
            except Exception:  # noqa: BLE001 - must not end the cluster; the next change tries again
                _log.exception("network not updated")
            await asyncio.sleep(_PUBLISH_SECONDS)  # gathers changes into one write

    async def _follow(self) -> None:
        world = self._world()
        self._ports.release(world)
        uids = {pod.metadata.uid for pod in world.pods.values()}
        self._ips = {uid: ip for uid, ip in self._ips.items() if uid in uids}
        self.publish()
        await self._forwarders.update(self._ports.forwards(world))

    def publish(self) -> None:
        """Write what has changed: first the map, then the assignments."""
        table = self._table(self._world())
        if table != self._published:
            files.write_json(self.map_file, table)
            self._published = table
        kept = {
            "assigned": dict(self._ports.assigned),
            "mentions": {uid: sorted(keys) for uid, keys in self._ports.mentions.items()},
            "ips": dict(self._ips),
            "blocks": self._host_ports.blocks,
        }
        if kept != self._kept:
            files.write_json(self._file, kept)
            self._kept = kept

    def close(self) -> None:
        """Release the host ports."""
        self._forwarders.close()
        self._host_ports.close()

    def _world(self) -> NetworkObjects:
        return NetworkObjects(self._services(), self._pods(), self._selection)

    def _table(self, world: NetworkObjects) -> dict[str, str]:
        return self._ports.table(world, self._ips)

    def _next_ip(self) -> str:
        taken = set(self._ips.values())
        newest = max((int(ipaddress.IPv4Address(ip)) for ip in taken), default=_FIRST_IP - 1)
        # Counts upwards instead of taking the lowest free address, so that an address is not soon reused for
        # another pod.
        span = _LAST_IP - _FIRST_IP + 1
        numbers = ((newest + 1 - _FIRST_IP + step) % span + _FIRST_IP for step in range(span))
        return next(
            ip for ip in (str(ipaddress.IPv4Address(number)) for number in numbers) if ip not in taken
        )


def _linked(world: NetworkObjects, namespace: str) -> Iterator[Service]:
    """The Services of a namespace for which pods get variables, oldest first."""
    for service in world.services.values():
        spec = service.spec
        if service.metadata.namespace == namespace and spec.ports and spec.cluster_ip != "None":
            yield service
