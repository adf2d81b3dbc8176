"""Starting and ending a bed."""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cluster.bed import argo, components, images, kwok
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.build import locked
from tests.cluster.bed.components import Site
from tests.cluster.bed.node import Node
from tests.cluster.bed.process import BedError
from tests.cluster.bed.wait import until


def up(site: Site) -> Bed:
    """Start a bed, or find the one that runs in the site's folder.

    What a killed predecessor left there is cleared away first.

    Raises:
        BedError: a program did not come up; its log stays.
    """
    with locked(_lock(site.folder)):
        if running(site.folder):
            return Bed.load(site.kubeconfig)
        _clear(site)
        shutil.rmtree(site.folder / "log", ignore_errors=True)
        node = Node(site.folder, site.network, site.bin / "pause")
        try:
            components.write_files(site)
            node.create()
            bed = _bed(site, node.enter)
            _start(bed, site)
        except BaseException:
            node.destroy()
            raise
        bed.save()
        return bed


def down(site: Site) -> None:
    """End the bed of the site's folder and remove all of it but its logs; without one, nothing happens."""
    with locked(_lock(site.folder)):
        _clear(site)


def running(folder: Path) -> bool:
    """Whether a bed runs in a folder, whole."""
    kubeconfig = folder / "admin.kubeconfig"
    if not (folder / "bed.json").exists():
        return False
    return all(daemon.pid for daemon in Bed.load(kubeconfig).daemons if daemon.name != kwok.NAME)


def _lock(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


def _clear(site: Site) -> None:
    Node(site.folder, site.network, site.bin / "pause").destroy()
    if site.folder.exists():
        for path in site.folder.iterdir():
            if path.is_dir() and path.name != "log":
                shutil.rmtree(path)
            elif path.name != "log":
                path.unlink()


def _bed(site: Site, enter: tuple[str, ...]) -> Bed:
    daemons = (*components.daemons(site, enter), argo.daemon(site, enter), kwok.daemon(site, enter))
    return Bed(
        site.kubeconfig, images.HOST, sys.executable, site.folder, site.folder / "data", daemons, enter
    )


def _start(bed: Bed, site: Site) -> None:
    try:
        _start_in_order(bed, site)
    except BedError as error:
        ended = [one for one in bed.daemons if one.log.exists() and not one.pid]
        raise BedError(
            "\n".join([str(error), *(f"{one.name} ended: {one.last_words}" for one in ended)])
        ) from error


def _start_in_order(bed: Bed, site: Site) -> None:
    _daemons(bed, "etcd", "apiserver")
    bed.wait_ready()
    _daemons(bed, "kcm", "sched", "containerd")
    until(lambda: bed.succeeds("get", "serviceaccount", "default"), "the controllers work")
    _import_images(bed, site)
    _daemons(bed, "kubelet", "proxy", "coredns")
    bed.kubectl("apply", "-f", "-", stdin=json.dumps(_name_server(site)))
    argo.install(bed, site)
    ready = 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
    until(lambda: bed.kubectl("get", "nodes", "-o", ready) == "True", "the node is ready")
    _daemons(bed, "argo")


def _daemons(bed: Bed, *names: str) -> None:
    for name in names:
        bed.daemon(name).start()


def _import_images(bed: Bed, site: Site) -> None:
    ctr = ("ctr", "--address", str(site.containerd), "--namespace", "k8s.io")
    until(lambda: _holds(lambda: bed.run_on_node(*ctr, "version")), "containerd answers")
    bed.run_on_node(*ctr, "images", "import", str(site.folder / "images.tar"))


def _name_server(site: Site) -> dict[str, Any]:
    """The Service of the name server, which is no pod: its endpoint is written by hand."""
    ports = [
        {"name": "dns", "port": 53, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
    ]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "kube-dns", "namespace": "kube-system"},
        "spec": {"clusterIP": site.network.dns, "ports": ports},
    }
    endpoints = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kube-dns-1",
            "namespace": "kube-system",
            "labels": {"kubernetes.io/service-name": "kube-dns"},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [site.network.node], "conditions": {"ready": True}}],
        "ports": ports,
    }
    return {"apiVersion": "v1", "kind": "List", "items": [service, endpoints]}


def _holds(call: Callable[[], object]) -> bool:
    """Whether a call succeeds; a bed that is starting refuses some."""
    try:
        call()
    except BedError:
        return False
    return True
