"""Maintains the Endpoints of Services: the pods that each selects, and which of them are ready.

They serve only clients that read Endpoints. The cluster itself does not use them to route connections: it
rewrites addresses (`edl_workflows.local.network`).
"""

import asyncio
from collections import defaultdict
from collections.abc import Iterable

import structlog

from edl_workflows.local.apiserver.client import LocalClient
from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.storage.revisions import Object
from edl_workflows.local.mirror import Mirror
from edl_workflows.local.pods import Pod, Service, target_port
from edl_workflows.local.selection import ServiceSelection

_BATCH_SECONDS = 0.1
_log = structlog.get_logger(__name__)


def endpoint_subsets(service: Service, pods: Iterable[Pod]) -> list[Object]:
    """The ``subsets`` of a Service's Endpoints. As in Kubernetes, pods with the same ports are in one subset.

    Args:
        service: a Service with a selector.
        pods: all pods of its namespace.
    """
    groups: dict[tuple[tuple[str, int, str], ...], dict[str, list[Object]]] = defaultdict(dict)
    for pod in sorted(pods, key=lambda pod: pod.metadata.name):
        if (
            not service.selects(pod)
            or pod.finished
            or pod.metadata.deletion_timestamp
            or not pod.status.get("podIP")
        ):
            continue
        target_ports = ((port.name, target_port(pod, port), port.protocol) for port in service.spec.ports)
        ports = tuple(
            (name, number, protocol) for name, number, protocol in target_ports if number is not None
        )
        ready = pod.ready or service.spec.publish_not_ready_addresses
        groups[ports].setdefault("addresses" if ready else "notReadyAddresses", []).append(_address(pod))
    return [
        {
            **addresses,
            "ports": [
                {**({"name": name} if name else {}), "port": number, "protocol": protocol}
                for name, number, protocol in ports
            ],
        }
        for ports, addresses in sorted(groups.items())
    ]


def _address(pod: Pod) -> Object:
    meta = pod.metadata
    target = {"kind": "Pod", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid}
    return {"ip": pod.status["podIP"], "nodeName": pod.spec.node_name, "targetRef": target}


class EndpointsWriter:
    """Maintains the Endpoints of all Services that have a selector.

    Args:
        client: the API.
        services: all Services, kept current.
        pods: all pods, kept current.
        selection: index of these Services and pods, kept current.
    """

    def __init__(
        self, client: LocalClient, services: Mirror[Service], pods: Mirror[Pod], selection: ServiceSelection
    ) -> None:
        self._client = client
        self._services = services
        self._pods = pods
        self._selection = selection
        self._behind: dict[str, set[str]] = {}
        self._due: set[str] = set()
        self._changed = asyncio.Event()
        services.listen(self._touch)
        pods.listen(self._touch_pod)

    def _touch(self, key: str) -> None:
        self._due.add(key)
        self._changed.set()

    def _touch_pod(self, key: str) -> None:
        """Queue the Services that select the pod, and those that selected it before the change."""
        pod = self._pods.objects.get(key)
        services = self._selection.selecting(pod) if pod else []
        keys = {f"{service.metadata.namespace}/{service.metadata.name}" for service in services}
        for service_key in keys | self._behind.pop(key, set()):
            self._touch(service_key)
        if keys:
            self._behind[key] = keys

    async def run(self) -> None:
        """Follow changes until cancelled."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            due, self._due = self._due, set()
            for key in due:
                self._write_one(key)
                await asyncio.sleep(0)  # lets requests run between two Services
            await asyncio.sleep(_BATCH_SECONDS)  # gathers changes into one write

    def _write_one(self, key: str) -> None:
        service = self._services.objects.get(key)
        if service is None or not service.spec.selector:
            return
        try:
            self._write(service, endpoint_subsets(service, self._selection.behind(service)))
        except ApiError as error:  # the Service or its namespace is being deleted
            _log.info("endpoints not written", service=key, reason=error.message)
        except Exception:  # noqa: BLE001 - an error of one Service must not end the cluster
            _log.exception("endpoints not written", service=key)

    def _write(self, service: Service, subsets: list[Object]) -> None:
        meta = service.metadata
        endpoints = self._client.find("endpoints", meta.name, meta.namespace)
        if endpoints is None:
            # The garbage collector deletes them with their Service.
            owner = {"apiVersion": "v1", "kind": "Service", "name": meta.name, "uid": meta.uid}
            place = {"name": meta.name, "namespace": meta.namespace, "ownerReferences": [owner]}
            self._client.create("endpoints", {"metadata": place, "subsets": subsets})
        elif (endpoints.get("subsets") or []) != subsets:
            self._client.update("endpoints", {**endpoints, "subsets": subsets})
