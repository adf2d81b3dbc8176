"""An index of the pods that each Service selects. It is updated for each changed object, so that thousands of
Services and pods need no scan."""

from collections.abc import Iterable

from edl_workflows.local.pods import ObjectMetadata, Pod, Service

Item = tuple[str, str, str]
"""Namespace, label and value."""


class ServiceSelection:
    """Services by their selectors and pods by their labels."""

    def __init__(self) -> None:
        self._services: dict[Item, dict[str, Service]] = {}
        self._pods: dict[Item, dict[str, Pod]] = {}
        self._places_of_services: dict[str, list[Item]] = {}
        self._places_of_pods: dict[str, list[Item]] = {}

    @classmethod
    def of(cls, services: Iterable[Service], pods: Iterable[Pod] = ()) -> "ServiceSelection":
        """An index of these Services and pods."""
        made = cls()
        for service in services:
            made.put_service(f"{service.metadata.namespace}/{service.metadata.name}", service)
        for pod in pods:
            made.put_pod(pod.key, pod)
        return made

    def put_service(self, key: str, service: Service | None) -> None:
        """Update a Service, or remove it if it is None."""
        _remove(key, self._services, self._places_of_services)
        if service is not None and service.spec.selector:
            # One label of the selector is enough to find candidates; the others are compared.
            place = (service.metadata.namespace, *min(service.spec.selector.items()))
            self._services.setdefault(place, {})[key] = service
            self._places_of_services[key] = [place]

    def put_pod(self, key: str, pod: Pod | None) -> None:
        """Update a pod, or remove it if it is None."""
        _remove(key, self._pods, self._places_of_pods)
        if pod is not None:
            places = self._places_of_pods[key] = _items(pod.metadata)
            for place in places:
                self._pods.setdefault(place, {})[key] = pod

    def selecting(self, pod: Pod) -> list[Service]:
        services = [
            service for item in _items(pod.metadata) for service in self._services.get(item, {}).values()
        ]
        return [service for service in services if service.selects(pod)]

    def behind(self, service: Service) -> list[Pod]:
        """The pods that a Service selects."""
        namespace = service.metadata.namespace
        buckets = [self._pods.get((namespace, *item), {}) for item in service.spec.selector.items()]
        return [pod for pod in min(buckets, key=len, default={}).values() if service.selects(pod)]


def _items(metadata: ObjectMetadata) -> list[Item]:
    return [(metadata.namespace, name, value) for name, value in metadata.labels.items()]


def _remove(
    key: str,
    objects: dict[Item, dict[str, Service]] | dict[Item, dict[str, Pod]],
    places: dict[str, list[Item]],
) -> None:
    for place in places.pop(key, ()):
        bucket = objects[place]
        del bucket[key]
        if not bucket:
            del objects[place]
