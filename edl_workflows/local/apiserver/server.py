"""Creates the parts of the API server and connects them."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from edl_workflows.local.apiserver.auth import Authenticator
from edl_workflows.local.apiserver.client import LocalClient
from edl_workflows.local.apiserver.objects import builtin
from edl_workflows.local.apiserver.objects.catalog import Catalog
from edl_workflows.local.apiserver.objects.garbage import GarbageCollector
from edl_workflows.local.apiserver.objects.registry import Registry
from edl_workflows.local.apiserver.reviews import Reviewer
from edl_workflows.local.apiserver.storage.store import ObjectStore
from edl_workflows.local.apiserver.subresources import LogProvider, ProxyProvider

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
"""Namespaces that exist from the start."""
_BUILTIN_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


@dataclass
class ApiServer:
    """One API server.

    Attributes:
        registry: the verbs.
        collector: the garbage collector; `app.build_app` runs it.
        authenticator: maps tokens to identities.
        client: the API for components in the same process.
        reviewer: answers reviews.
        logs: serves ``pods/log``; the pod runner sets it.
        proxy: serves ``services/proxy``; the network sets it.
    """

    registry: Registry
    collector: GarbageCollector
    authenticator: Authenticator
    client: LocalClient = field(init=False)
    reviewer: Reviewer = field(init=False)
    logs: LogProvider | None = None
    proxy: ProxyProvider | None = None

    def __post_init__(self) -> None:
        self.client = LocalClient(self.registry)
        self.reviewer = Reviewer(self.registry.catalog, self.authenticator)

    def close(self) -> None:
        self.registry.store.close()


def open_server(directory: Path, admins: Mapping[str, str], *, history: int = 10_000) -> ApiServer:
    """Open an API server on the state in `directory`, which is created if absent.

    Args:
        directory: folder of ``state.db``.
        admins: names of the administrators by token.
        history: number of changes that are kept per resource for watches.
    """
    directory.mkdir(parents=True, exist_ok=True)
    catalog = Catalog(builtin.builtin_resources())
    store = ObjectStore(directory / "state.db", history=history, index=catalog.index)
    registry = Registry(store, catalog)
    _furnish(registry)
    key = store.setting("service-account-key", secrets.token_hex(32))
    return ApiServer(registry, GarbageCollector(registry), Authenticator(admins, key, store))


def _furnish(registry: Registry) -> None:
    client = LocalClient(registry)
    for name in NAMESPACES:
        if client.find("namespaces", name) is None:
            client.create("namespaces", {"metadata": {"name": name}})
    for name, value in _BUILTIN_PRIORITIES.items():
        if client.find("priorityclasses.scheduling.k8s.io", name) is None:
            client.create("priorityclasses.scheduling.k8s.io", {"metadata": {"name": name}, "value": value})
