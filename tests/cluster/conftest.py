"""The real cluster under test: one that is started for the run, or with ``EDL_TEST_CLUSTER=existing`` a
running one.

A running one is that of ``KUBECONFIG``. Where `make cluster-up` started it, everything is as if the run had;
of any other cluster ``EDL_TEST_IMAGE`` and ``EDL_TEST_PYTHON`` name an image with edl_workflows and the
interpreter in it, and tests that need more than the API are skipped.

Tests delete everything that they create outside their namespace.
"""

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import NAMESPACES, SERVICE_ACCOUNTS
from tests.cluster.argo_runs import Argo, argo
from tests.cluster.argo_templates import PRODUCTS
from tests.cluster.bed import build, lifecycle
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.components import default_site
from tests.cluster.bed.wait import until
from tests.cluster.installed import Installed, from_host, installed
from tests.cluster.training import Place, place

_FOLDER = Path(__file__).parent
# Read before the tests' environment is cleaned.
_EXISTING = os.environ.get("EDL_TEST_CLUSTER") == "existing"
_KUBECONFIG = Path(os.environ.get("KUBECONFIG", "~/.kube/config")).expanduser()
_IMAGE = os.environ.get("EDL_TEST_IMAGE", "")
_PYTHON = os.environ.get("EDL_TEST_PYTHON", "python")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs the cluster; the fast lane leaves it out. What judges the whole run comes
    last."""
    for item in items:
        if item.path.is_relative_to(_FOLDER):
            item.add_marker(pytest.mark.cluster)
    items.sort(key=lambda item: item.path == _FOLDER / "test_rbac.py")


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    """The test bed, for the whole run."""
    if _EXISTING and (_KUBECONFIG.parent / "bed.json").exists():
        yield Bed.load(_KUBECONFIG)
    elif _EXISTING:
        yield Bed(_KUBECONFIG, _IMAGE, _PYTHON)
    else:
        yield from _started()


def _started() -> Iterator[Bed]:
    """The bed of `make cluster-up`, left as it is found: running, or not."""
    site = default_site()
    found = lifecycle.running(site.folder)
    build.build()
    yield lifecycle.up(site)
    if not found:
        lifecycle.down(site)


@pytest.fixture(scope="session")
def cluster(bed: Bed) -> Cluster:
    """The administrator's connection."""
    return Cluster.from_kubeconfig(bed.kubeconfig)


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own, deleted after it."""
    yield from _namespace(cluster)


@pytest.fixture(scope="module")
def module_namespace(cluster: Cluster) -> Iterator[str]:
    """A namespace that the tests of one module share, deleted after them."""
    yield from _namespace(cluster)


@pytest.fixture(scope="session")
def controlled(request: pytest.FixtureRequest, bed: Bed, cluster: Cluster) -> Iterator[Place]:
    """A controller in a namespace, started when the first module needs it."""
    with (
        contextlib.contextmanager(_namespace)(cluster) as name,
        place(request, bed, cluster.in_namespace(name)) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def here(controlled: Place) -> Place:
    """Where the jobs of a module run; modules with other needs have a fixture of this name themselves."""
    return controlled


def _namespace(cluster: Cluster) -> Iterator[str]:
    name = f"test-{uuid.uuid4().hex[:8]}"
    client.create(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    until(lambda: client.find(cluster, SERVICE_ACCOUNTS, "default", name) is not None, f"account of {name}")
    yield name
    client.delete(cluster, NAMESPACES, name)


@pytest.fixture(scope="session")
def installation(bed: Bed, cluster: Cluster) -> Iterator[Installed]:
    """An installation for one namespace, started when the first module needs it."""
    with installed(bed, cluster, f"test-{uuid.uuid4().hex[:6]}", bed.image, from_host(bed)) as running:
        yield running


@pytest.fixture(scope="session")
def templates(bed: Bed, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Argo]:
    """Our Argo templates in a namespace with an agent and without a controller."""
    with (
        contextlib.contextmanager(_namespace)(cluster) as name,
        argo(bed, cluster.in_namespace(name), PRODUCTS, tmp_path_factory.mktemp("argo")) as running,
    ):
        yield running


@pytest.fixture
def shared_folder(bed: Bed) -> Iterator[Path]:
    """A folder of the test's own that pods may mount (hostPath, at the same path) and anyone may write."""
    folder = bed.data_dir / f"test-{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
