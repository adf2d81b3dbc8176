"""The image that `Containerfile` makes: what is in it, and that a controller, a master and an agent run from
it."""

import json
import re
import socket
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.pipelines.install import rbac
from edl_workflows.runtime.kube.connect import Cluster
from tests.cluster import image as images
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.components import PLAIN_RUNTIME
from tests.cluster.image import Image
from tests.cluster.installed import from_image, image_job, installed
from tests.e2e.submitted import SubmittedJob

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

_ROOT = Path(__file__).parents[2]
_METADATA = re.compile(
    r"opt/edl/lib/python3[.\d]*/site-packages/(?P<name>[^/]+)-(?P<version>[^/-]+)\.dist-info/METADATA"
)
"""Of a distribution in the image's environment."""
SETTINGS = (
    "etc/apt/sources.list",  # also the folder sources.list.d
    "etc/hostname",
    "etc/hosts",
    "etc/pip.conf",
    "etc/resolv.conf",
    "root/.config/pip/pip.conf",
    "var/lib/apt/lists/",
)
"""Beginnings of the paths of what says where a machine stands; empty files are where a container's own are
mounted."""


@pytest.fixture(scope="module")
def image() -> Image:
    """Built, or found in the cache."""
    return images.build()


def layers(image: Image) -> Iterator[tarfile.TarFile]:
    """The image's file system, lowest layer first."""
    with tarfile.open(image.archive) as archive:
        manifest = json.load(_member(archive, "manifest.json"))
        for name in manifest[0]["Layers"]:
            with tarfile.open(fileobj=_member(archive, name)) as layer:
                yield layer


def _member(archive: tarfile.TarFile, name: str) -> Any:
    found = archive.extractfile(name)
    assert found is not None, name
    return found


def test_it_runs_as_nobody_in_particular(image: Image) -> None:
    """The user is a number other than root's, which `runAsNonRoot` can check, and there is no pip to install
    with."""
    with tarfile.open(image.archive) as archive:
        manifest = json.load(_member(archive, "manifest.json"))
        config = json.load(_member(archive, manifest[0]["Config"]))["config"]

    assert config["User"] == "65532:65532"
    assert config["Entrypoint"] == ["edl"]
    names = {name for layer in layers(image) for name in layer.getnames()}
    assert "opt/edl/bin/edl" in names
    assert not {name for name in names if re.match(r"opt/edl/bin/pip|wheels/|source/", name)}


def test_nothing_of_this_machine_is_in_it(image: Image) -> None:
    """No file of the image contains the name of this machine or the address of its package index."""
    own = {socket.gethostname(), *_package_indexes()} - {"localhost", "vm"}
    pattern = re.compile(b"|".join(re.escape(word.encode()) for word in own) or rb"(?!)")
    settings, mentions = [], []
    for layer in layers(image):
        for member in layer:
            content = layer.extractfile(member) if member.isfile() else None
            data = content.read() if content is not None else b""
            if data and member.name.removeprefix("./").startswith(SETTINGS):
                settings.append(member.name)
            if pattern.search(data):
                mentions.append(member.name)

    assert settings == []
    assert mentions == []


def _package_indexes() -> set[str]:
    """Where this machine's pip is told to get packages from: host and path, without scheme and
    credentials."""
    pip = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    indexes = [line for line in pip.stdout.splitlines() if "index-url" in line]
    return set(re.findall(r"https?://(?:[^/@\s]*@)?([^\s']+)", "\n".join(indexes)))


def test_its_sbom_lists_what_is_installed(image: Image, tmp_path: Path) -> None:
    """The SBOM of the image lists each distribution that is installed in it, with its version, and the
    package itself, and nothing else."""
    installed_here = set[tuple[str, str]]()
    for layer in layers(image):
        metadata = [member for member in layer if _METADATA.fullmatch(member.name)]
        layer.extractall(tmp_path / "root", metadata, filter="data")
        for member in metadata:
            folder = _METADATA.fullmatch(member.name)
            assert folder is not None
            installed_here.add((_normalized(folder["name"]), folder["version"]))
    output = tmp_path / "sbom.json"
    command = ["--image", image.name, "--root", str(tmp_path / "root"), "--output", str(output)]
    subprocess.run([sys.executable, "-m", "release.sbom", *command], check=True, cwd=_ROOT)

    document = json.loads(output.read_text())
    listed = {(_normalized(one["name"]), one["version"]) for one in document["components"]}
    assert listed == installed_here
    pinned = re.findall(
        r"^([\w.-]+)==(\S+) \\$", (_ROOT / "requirements/image.txt").read_text(), re.MULTILINE
    )
    assert {(_normalized(name), version) for name, version in pinned} <= listed
    assert "edl-workflows" in {name for name, _ in listed}


def _normalized(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_controller_master_and_agent_run_from_it(bed: Bed, cluster: Cluster, image: Image) -> None:
    """With nothing but the image, both replicas of the controller become ready, and a job whose master and
    worker use the image succeeds. Nothing but the image's source is overridden."""
    load(bed, image)
    with installed(bed, cluster, f"test-{uuid.uuid4().hex[:6]}", image.name, from_image) as here:
        try:
            here.wait_ready()
            pipeline = here.account("pipeline", rbac.PIPELINE)
            submitted = SubmittedJob.submit(pipeline, image_job(image.name, "ends"))
            submitted.wait_phase(JobPhase.SUCCEEDED, seconds=120)
        except BaseException:
            print(here.explain())
            raise


def load(bed: Bed, image: Image) -> None:
    """Import it into the node, and name the runtime that runs it."""
    address = bed.daemon("containerd").folder / "containerd.sock"
    ctr = ["ctr", "--address", str(address), "--namespace", "k8s.io"]
    bed.run_on_node(*ctr, "images", "import", str(image.archive))
    runtime = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": PLAIN_RUNTIME}
    bed.kubectl("apply", "-f", "-", stdin=json.dumps(runtime | {"metadata": {"name": PLAIN_RUNTIME}}))
