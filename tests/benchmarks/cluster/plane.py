"""A control plane without nodes, in a folder and on ports of its own, with KWOK's nodes on which nothing
runs.

For load on controllers: etcd, the API server, the controller manager and the scheduler of the cluster lane's
binary, with their own limits of requests as they come. Every client has a user of its own, so that the audit
log tells whose a request was.
"""

import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from edl_workflows.core.exceptions import EdlError
from edl_workflows.runtime.kube import client, transport
from edl_workflows.runtime.kube.connect import CallPolicy, Cluster
from edl_workflows.runtime.kube.resources import NAMESPACES, NODES, SERVICE_ACCOUNTS, Scope
from edl_workflows.testing import free_port

BENCH, CONTROLLER, MASTERS, PEER = "bench", "edl-controller", "edl-masters", "training-operator"
LIMIT = "limit-client"
MEASURED = (BENCH, CONTROLLER, MASTERS, PEER, LIMIT)
MANAGER, SCHEDULER, KWOK = "system:kube-controller-manager", "system:kube-scheduler", "kwok"
FAKE = "kwok.x-k8s.io/node"
FAKE_NODES = 20
START_SECONDS = 90.0
AuditLevel = Literal["Metadata", "RequestResponse"]
ADVERTISED = "10.88.0.1"
"""The API server refuses to advertise a loopback address; nobody here uses this one."""


@dataclass(frozen=True)
class Binaries:
    """The programs.

    Attributes:
        plane: one binary with etcd and Kubernetes' parts.
        kwok: KWOK.
        stages: KWOK's stage files.
        peer: Kubeflow's training-operator.
        peer_crds: its CRDs.
        limit: the limit client.
    """

    plane: Path
    kwok: Path
    stages: Sequence[Path]
    peer: Path
    peer_crds: Sequence[Path]
    limit: Path = Path()


@dataclass(frozen=True)
class Plane:
    """A running control plane.

    Attributes:
        folder: of its files.
        port: the API server's.
        etcd: etcd's URL, which also serves its metrics.
        audited: the audit log's level.
        processes: of the control plane, by name.
    """

    folder: Path
    port: int
    etcd: str
    audited: AuditLevel = "Metadata"
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def audit_log(self) -> Path:
        """One line a stage of a request, of the users that are measured."""
        return self.folder / "audit.jsonl"

    def kubeconfig(self, user: str) -> Path:
        """A user's; all but Kubernetes' own parts may do everything."""
        return self.folder / f"{user.rpartition(':')[2]}.kubeconfig"

    def cluster(self, user: str = BENCH) -> Cluster:
        """A handle of this user."""
        return Cluster.from_kubeconfig(self.kubeconfig(user))


@contextmanager
def running_plane(
    binaries: Binaries, folder: Path, audited: AuditLevel = "Metadata", *, nodes: bool = True
) -> Iterator[Plane]:
    """A control plane, stopped at the end.

    Args:
        binaries: its programs.
        folder: of its files.
        audited: what its audit log has of each request.
        nodes: whether it has fake nodes, and the programs that run pods on them.
    """
    etcd, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
    plane = Plane(folder, free_port(), etcd, audited)
    _credentials(plane)
    with ExitStack() as stack:

        def start(name: str, *command: str) -> None:
            plane.processes[name] = stack.enter_context(process(folder, name, command))

        start(
            "etcd", str(binaries.plane), "etcd", "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync",
            "--listen-client-urls", etcd, "--advertise-client-urls", etcd, "--listen-peer-urls", peers,
            "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}", "--log-level",
            "error",
        )  # fmt: skip
        start("apiserver", str(binaries.plane), *_apiserver(plane))
        wait_for(lambda: _ready(plane))
        if nodes:
            _start_nodes(plane, binaries, start)
        yield plane


def _start_nodes(plane: Plane, binaries: Binaries, start: Callable[..., None]) -> None:
    """Start the controller manager, the scheduler and KWOK.

    Args:
        plane: whose API server runs.
        binaries: the programs.
        start: starts a program by its name and command.
    """
    manager = [
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={plane.folder}/sa.key",
    ]
    for name, user, more in (
        ("kube-controller-manager", MANAGER, manager),
        ("kube-scheduler", SCHEDULER, []),
    ):
        options = [f"--kubeconfig={plane.kubeconfig(user)}", "--leader-elect=false", "--secure-port=0"]
        start(name, str(binaries.plane), name, *options, *more)
    cluster = plane.cluster()
    wait_for(lambda: client.find(cluster, SERVICE_ACCOUNTS, "default", "default") is not None)
    stages = [f"--config={stage}" for stage in binaries.stages]
    start(
        KWOK, str(binaries.kwok), f"--kubeconfig={plane.kubeconfig(KWOK)}", "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={FAKE}=fake", "--node-lease-duration-seconds=40",
        *stages,
    )  # fmt: skip
    _make_nodes(cluster)


@contextmanager
def process(folder: Path, name: str, command: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A process with its output in a file of the folder; killed at the end, since it has nothing to keep."""
    with (folder / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def wait_for(condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    """Wait until the condition holds.

    Raises:
        TimeoutError: it does not.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s")
        time.sleep(0.05)


def _apiserver(plane: Plane) -> list[str]:
    folder = plane.folder
    return [
        "kube-apiserver", f"--etcd-servers={plane.etcd}", f"--secure-port={plane.port}",
        "--bind-address=127.0.0.1", f"--advertise-address={ADVERTISED}", "--endpoint-reconciler-type=none",
        f"--cert-dir={folder}/certificates",
        f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={folder}/sa.key",
        f"--service-account-signing-key-file={folder}/sa.key", "--service-cluster-ip-range=10.96.0.0/16",
        f"--audit-policy-file={folder}/audit.yaml", f"--audit-log-path={plane.audit_log}",
        "--audit-log-maxsize=2000",
    ]  # fmt: skip


def _credentials(plane: Plane) -> None:
    """Tokens, kubeconfigs, the key of service accounts, and what is audited."""
    folder = plane.folder
    subprocess.run(["openssl", "genrsa", "-out", folder / "sa.key", "2048"], check=True, capture_output=True)
    rows = []
    for user in (*MEASURED, MANAGER, SCHEDULER, KWOK):
        token = secrets.token_hex(16)
        rows.append(f"{token},{user},{user},{'' if user.startswith('system:') else 'system:masters'}\n")
        plane.kubeconfig(user).write_text(yaml.safe_dump(_kubeconfig(plane, user, token)))
    (folder / "tokens.csv").write_text("".join(rows))
    rules = [{"level": plane.audited, "users": list(MEASURED)}, {"level": "None"}]
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": rules,
    }
    (folder / "audit.yaml").write_text(yaml.safe_dump(policy))


def _kubeconfig(plane: Plane, user: str, token: str) -> dict[str, Any]:
    # The certificate that the server makes for itself holds its authority's behind its own.
    authority = str(plane.folder / "certificates/apiserver.crt")
    cluster = {"server": f"https://127.0.0.1:{plane.port}", "certificate-authority": authority}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": cluster}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [
            {"name": "bench", "context": {"cluster": "bench", "user": user, "namespace": "default"}}
        ],
        "current-context": "bench",
    }


def _ready(plane: Plane) -> bool:
    """Whether the server answers; its certificate comes first."""
    with suppress(EdlError, OSError):
        impatient = plane.cluster().with_policy(CallPolicy(attempts=1, read_seconds=5))
        transport.send_for_text(
            impatient, transport.ApiRequest("get", "readyz", "/readyz", "ask the API server")
        )
        return client.find(impatient, NAMESPACES, "default") is not None
    return False


def _make_nodes(cluster: Cluster) -> None:
    for index in range(FAKE_NODES):
        name = f"fake-{index}"
        metadata = {"name": name, "annotations": {FAKE: "fake"}, "labels": {"kubernetes.io/hostname": name}}
        client.create(cluster, {"apiVersion": "v1", "kind": "Node", "metadata": metadata})

    def ready() -> bool:
        nodes = client.list_objects(cluster, Scope(NODES)).items
        return all(
            any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))
            for node in nodes
        )

    wait_for(ready)
