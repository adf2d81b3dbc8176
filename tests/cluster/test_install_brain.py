"""`edl install --with brain` on a real cluster: Brain in a pod, its store on a volume, its rights those of
its role.

The installation is one for all namespaces, as the monitor needs it; its controller is left out, since other
tests' jobs are not for it. The bed makes no volumes by itself: Brain's is a folder of the machine.
"""

import contextlib
import json
import shutil
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.install import workloads
from edl_workflows.pipelines.install.manifests import installation_manifests
from edl_workflows.pipelines.install.options import InstallOptions, InstallPart, PullPolicy
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.client import DeletionOptions
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Object, Scope
from edl_workflows.services.brain import auth
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.process import BedError
from tests.cluster.bed.wait import until
from tests.cluster.installed import READY_SECONDS, USER, allowed, apply, changed, from_host, job
from tests.cluster.training import place
from tests.e2e.submitted import SubmittedJob

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE = 240
"""Seconds; a busy machine takes a minute to start a program with its libraries."""
RHYTHM = 20
"""Seconds between two plans, so that a master takes a sample each second."""


@dataclass(frozen=True)
class Brain:
    """A Brain in a pod.

    Attributes:
        bed: where.
        cluster: the administrator, in its namespace.
        volume: the folder with its store.
        operator, tenant, stranger: tokens of who sees all jobs, those of the tests' namespace, and those of
            another.
    """

    bed: Bed
    cluster: Cluster
    volume: Path
    operator: str
    tenant: str
    stranger: str

    @property
    def service(self) -> str:
        """Its address for masters."""
        return f"http://{names.BRAIN}.{self.cluster.namespace}.svc:{names.BRAIN_PORT}"

    def ask(self, path: str, token: str, **query: Any) -> httpx.Response:
        """GET from this machine, which reaches Services by their addresses."""
        service = json.loads(
            self.bed.kubectl("-n", self.cluster.namespace, "get", "service", names.BRAIN, "-o", "json")
        )
        url = f"http://{service['spec']['clusterIP']}:{names.BRAIN_PORT}{path}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        return httpx.get(url, params=query, headers=headers, timeout=30, trust_env=False)

    def told(self, path: str, **query: Any) -> Any:
        """What it answers an operator; {} while it is away."""
        try:
            answer = self.ask(path, self.operator, **query)
        except httpx.HTTPError:
            return {}
        return answer.json() if answer.status_code == 200 else {}

    def samples(self, uid: str) -> list[Any]:
        """What a job's master has told it."""
        return list(self.told(f"/v1/jobs/{uid}/metrics").get("samples", []))

    def wait_ready(self) -> None:
        """Wait until its pod is."""
        self.bed.kubectl(
            "-n", self.cluster.namespace, "rollout", "status", f"deployment/{names.BRAIN}",
            f"--timeout={READY_SECONDS}s",
        )  # fmt: skip

    def pod(self) -> str:
        """Its pod's name."""
        scope = Scope(resources.PODS, self.cluster.namespace, f"app.kubernetes.io/component={names.BRAIN}")
        (pod,) = (
            one
            for one in client.list_objects(self.cluster, scope).items
            if "deletionTimestamp" not in one["metadata"]
        )
        return str(pod["metadata"]["name"])


@pytest.fixture(scope="module")
def brain(
    bed: Bed, cluster: Cluster, module_namespace: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Brain]:
    """Installed as the how-to has it: the manifests, then the Secret with the tokens."""
    own = f"test-{uuid.uuid4().hex[:6]}"
    volume = bed.data_dir / own
    volume.mkdir()
    volume.chmod(0o777)  # no kubelet gives a folder of its machine to a pod's group
    tokens = tmp_path_factory.mktemp("brain") / workloads.BRAIN_TOKENS
    operator, tenant, stranger = (
        _token(tokens, *row)
        for row in (("ops", auth.EVERYTHING), ("tests", module_namespace), ("others", "elsewhere"))
    )
    # Other tests run controllers with other accounts, whose work its admission policies would refuse, and
    # whose masters its FlowSchemas would match.
    options = InstallOptions(
        bed.image,
        own,
        kinds=("all",),
        pull_policy=PullPolicy.NEVER,
        parts=frozenset({InstallPart.BRAIN}),
        admission_policies=False,
        flow_schemas=False,
    )
    objects = changed(installation_manifests(options), from_host(bed))
    for one in objects:
        if one["kind"] == "Deployment" and one["metadata"]["name"] == names.CONTROLLER:
            one["spec"]["replicas"] = 0
    try:
        apply(bed, [_volume(own, volume), *objects])
        apply(bed, [_secret(own, tokens.read_text())])
        running = Brain(bed, cluster.in_namespace(own), volume, operator, tenant, stranger)
        running.wait_ready()
        yield running
    finally:
        with contextlib.suppress(BedError):
            print(bed.kubectl("-n", own, "describe", "pods,persistentvolumeclaims"))
            print(bed.kubectl("-n", own, "logs", f"deployment/{names.BRAIN}", "--tail=60"))
        bindings = [one["metadata"]["name"] for one in objects if one["kind"] == "ClusterRoleBinding"]
        bed.kubectl("delete", "--ignore-not-found", "clusterrolebinding", *bindings)
        with contextlib.suppress(BedError):  # Brain leaves its folder before it is removed, as a rule
            bed.kubectl("delete", "--ignore-not-found", "--timeout=240s", "namespace", own)
        bed.kubectl("delete", "--ignore-not-found", "--wait=false", "persistentvolume", own)
        shutil.rmtree(volume, ignore_errors=True)


def _token(file: Path, tenant: str, namespace: str) -> str:
    """As `edl brain token` makes it."""
    made, row = auth.new_token(tenant, [namespace])
    auth.add_token(file, row)
    return made


def _secret(namespace: str, text: str) -> Object:
    """What `kubectl create secret generic edl-brain --from-file=tokens.json` makes."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": names.BRAIN, "namespace": namespace},
        "stringData": {workloads.BRAIN_TOKENS: text},
    }


def _volume(namespace: str, folder: Path) -> Object:
    """For the one claim of an installation."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": namespace},
        "spec": {
            "capacity": {"storage": workloads.BRAIN_STORAGE},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "claimRef": {"namespace": namespace, "name": names.BRAIN},
            "hostPath": {"path": str(folder)},
        },
    }


@pytest.fixture(scope="module")
def reports(
    request: pytest.FixtureRequest, bed: Bed, cluster: Cluster, module_namespace: str, brain: Brain
) -> Iterator[SubmittedJob]:
    """A job that trains, whose master knows Brain's address and the tenant's token."""
    mine = cluster.in_namespace(module_namespace)
    environment = {names.ENV_BRAIN_TOKEN: brain.tenant, names.ENV_AUTOSCALE_PERIOD: str(RHYTHM)}
    main = {"name": "main", "env": [{"name": key, "value": value} for key, value in environment.items()]}
    manifest = job(bed, "reports", roles=("ps", "worker"))
    manifest["spec"] |= {"optimizeMode": "cluster", "brainService": brain.service}
    manifest["spec"]["replicaSpecs"][names.MASTER_TYPE] = {
        "replicas": 1,
        "template": {"spec": {"containers": [main]}},
    }
    with place(request, bed, mine):
        submitted = SubmittedJob.submit(mine, manifest)
        submitted.wait_step(1, PATIENCE)
        yield submitted
        client.delete(mine, resources.ELASTIC_JOBS, submitted.name)


def test_its_store_is_on_the_volume(brain: Brain) -> None:
    """The database is on the claimed volume, written by the pod's user."""
    file = brain.volume / "brain.db"

    assert file.exists()
    assert file.stat().st_uid == USER


def test_a_master_reports_and_gets_its_plans(brain: Brain, reports: SubmittedJob) -> None:
    """With the token of its namespace, a job's samples are stored, and its plan comes from Brain."""
    uid = reports.get().metadata.uid

    def steps() -> list[int]:
        return [sample["step"] for sample in brain.samples(uid)]

    until(lambda: len(steps()) > 2 and steps()[-1] > 0, "samples of the training", PATIENCE)

    def planner() -> str:
        about = reports.get().status.autoscaling
        return about.optimizer if about else ""

    until(lambda: planner() == "brain", "Brain planned for it", PATIENCE)


def test_the_monitor_tells_of_nodes_pods_and_jobs(brain: Brain, reports: SubmittedJob) -> None:
    """The page's numbers come from the cluster: ready nodes, running pods, and the job with its replicas."""
    nodes = len(client.list_objects(brain.cluster, Scope(resources.NODES)).items)
    until(lambda: bool(_newest(brain)) and _newest(brain)["pods_running"] >= 4, "a look at the cluster")
    # The master may have told of the job before the monitor: then nothing is known of what is ready.
    until(lambda: _ready(brain, reports) == {"ps": 1, "worker": 1}, "the job's ready replicas")
    row = _row(brain, reports)

    assert _newest(brain)["nodes_ready"] == nodes
    assert row["phase"] == JobPhase.RUNNING
    assert {role: row["replicas"][role]["desired"] for role in ("ps", "worker")} == {"ps": 1, "worker": 1}


def _newest(brain: Brain) -> Any:
    points = brain.told("/v1/cluster", seconds=600).get("points") or [{}]
    return points[-1]


def _row(brain: Brain, of: SubmittedJob) -> Any:
    found = brain.told("/v1/jobs", search=of.name).get("jobs", [])
    return next((one for one in found if one["namespace"] == of.cluster.namespace), {})


def _ready(brain: Brain, of: SubmittedJob) -> dict[str, int | None]:
    counts = _row(brain, of).get("replicas", {})
    return {role: counts[role]["ready"] for role in ("ps", "worker") if role in counts}


def test_each_sees_what_its_token_is_for(brain: Brain, reports: SubmittedJob) -> None:
    """The page opens without a token, but has no numbers. A tenant sees the jobs of its namespaces."""
    until(lambda: bool(_row(brain, reports)), "the job is known")
    page = brain.ask("/", "")

    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert brain.ask("/v1/jobs", "").status_code == 401
    assert [one["name"] for one in brain.ask("/v1/jobs", brain.tenant).json()["jobs"]] == [reports.name]
    assert brain.ask("/v1/jobs", brain.stranger).json()["jobs"] == []


@pytest.mark.parametrize(
    ("resource", "verb", "expected"),
    [
        ({"resource": "nodes"}, "watch", True),
        ({"group": names.GROUP, "resource": "elasticjobs"}, "list", True),
        ({"group": names.GROUP, "resource": "elasticjobs"}, "patch", False),
        ({"group": names.GROUP, "resource": "scaleplans"}, "create", False),
        ({"resource": "secrets"}, "get", False),
        ({"resource": "pods"}, "delete", False),
    ],
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else str(value),
)
def test_it_looks_and_changes_nothing(
    brain: Brain, resource: dict[str, str], verb: str, expected: bool
) -> None:
    """Brain's account may read the cluster, and change nothing."""
    user = f"system:serviceaccount:{brain.cluster.namespace}:{names.BRAIN}"

    until(
        lambda: allowed(brain.cluster, user, {**resource, "verb": verb}) is expected,
        f"{verb} {resource}: {expected}",
    )


def test_its_pod_is_killed(brain: Brain, reports: SubmittedJob) -> None:
    """After Brain's pod is killed, the next one has all acknowledged reports, and the job, which continued to
    train, reports to it."""
    uid = reports.get().metadata.uid
    until(lambda: bool(brain.samples(uid)), "samples of the job's master", PATIENCE)
    before = brain.samples(uid)
    client.delete(brain.cluster, resources.PODS, brain.pod(), options=DeletionOptions(grace_seconds=0))
    brain.wait_ready()

    until(lambda: len(brain.samples(uid)) > len(before), "further samples", PATIENCE)
    assert [one["step"] for one in brain.samples(uid)][: len(before)] == [one["step"] for one in before]
    assert reports.get().status.master_restarts == 0
