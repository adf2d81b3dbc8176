"""The cluster's programs: their command lines and the files that they read.

Sources: the flags and configuration kinds of Kubernetes 1.34 (kubelet.config.k8s.io/v1beta1,
kubeproxy.config.k8s.io/v1alpha1), containerd's CRI plugin, the CNI's ptp plugin.
"""

import json
import secrets
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.clients import environments
from tests.cluster.bed import build, images
from tests.cluster.bed.node import Network
from tests.cluster.bed.process import Daemon

NODE_NAME = "testbed"
PLAIN_RUNTIME = "plain"
"""The container runtime that binds none of the machine's folders."""
_USERS = {
    "admin": ("admin", "system:masters"),
    "kcm": ("system:kube-controller-manager", ""),
    "sched": ("system:kube-scheduler", ""),
    "node": (f"system:node:{NODE_NAME}", "system:nodes"),
}
"""Kubeconfig → who its holder is, and of which group."""
_HOST_FOLDERS = (
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/sbin",
    "/etc/ssl",
    "/etc/alternatives",
    "/etc/ld.so.cache",
)
_REPOSITORY = Path(__file__).parents[3]


@dataclass(frozen=True)
class Site:
    """Where a bed stands.

    Attributes:
        folder: all its state.
        bin: the built programs.
        network: its addresses.
        binds: folders of the machine that every container sees, read-only at the same path, beside the
            machine's programs, this checkout, the Python that runs this and the environments of
            `tests.clients`.
    """

    folder: Path
    bin: Path
    network: Network
    binds: tuple[Path, ...] = field(default=())

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.folder / "admin.kubeconfig"

    @property
    def containerd(self) -> Path:
        """The container runtime's socket."""
        return self.folder / "containerd.sock"


def default_site() -> Site:
    """The bed of this user on this machine. Its containers see the Python environments of the tests, also
    those that are built later."""
    environments.CACHE.mkdir(parents=True, exist_ok=True)
    return Site(build.CACHE / "run", build.BIN, Network(222), (environments.CACHE,))


def write_files(site: Site) -> None:
    """Write everything that the programs read."""
    for name in ("pki", "cni", "log", "data"):
        (site.folder / name).mkdir(parents=True, exist_ok=True)
    (site.folder / "data").chmod(0o777)
    _write_identities(site)
    write = {
        "audit.yaml": _AUDIT_POLICY,
        "kubelet.yaml": _kubelet(site),
        "proxy.yaml": _proxy(site),
        "base.json": _base_spec(site),
        "cni/10-pods.conflist": _cni(site),
    }
    for name, value in write.items():
        (site.folder / name).write_text(json.dumps(value, indent=1))  # JSON is YAML
    (site.folder / "containerd.toml").write_text(_containerd(site))
    (site.folder / "Corefile").write_text(_corefile(site))
    images.write_archive(site.bin / "pause", site.folder / "images.tar")


def daemons(site: Site, enter: tuple[str, ...]) -> list[Daemon]:
    """Kubernetes and what it stands on."""
    commands: dict[str, list[str]] = {
        "etcd": _etcd(site),
        "apiserver": _apiserver(site),
        "kcm": _controller_manager(site),
        "sched": [
            _kubelab(site),
            "kube-scheduler",
            *_flags(kubeconfig=_config(site, "sched"), leader_elect=False),
        ],
        "containerd": ["containerd", *_flags(config=site.folder / "containerd.toml")],
        "kubelet": _kubelet_command(site),
        "proxy": [_kubelab(site), "kube-proxy", *_flags(config=site.folder / "proxy.yaml")],
        "coredns": [_kubelab(site), "coredns", "-conf", str(site.folder / "Corefile")],
    }
    return [Daemon(name, tuple(command), site.folder, {}, enter) for name, command in commands.items()]


def _kubelab(site: Site) -> str:
    return str(site.bin / "kubelab")


def _config(site: Site, user: str) -> Path:
    return site.folder / f"{user}.kubeconfig"


def _flags(**values: object) -> list[str]:
    """``--name=value`` for each; booleans as Go's flags take them."""
    return [
        f"--{name.replace('_', '-')}={str(value).lower() if isinstance(value, bool) else value}"
        for name, value in values.items()
    ]


def _etcd(site: Site) -> list[str]:
    clients, peers = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
    flags = _flags(
        data_dir=site.folder / "etcd",
        listen_client_urls=clients,
        advertise_client_urls=clients,
        listen_peer_urls=peers,
        unsafe_no_fsync=True,  # nobody's data; a disk's latency would be in every measurement
        log_level="error",
    )
    return [_kubelab(site), "etcd", *flags]


def _apiserver(site: Site) -> list[str]:
    account_key = site.folder / "pki" / "sa.key"
    flags = _flags(
        etcd_servers="http://127.0.0.1:2379",
        advertise_address=site.network.node,  # may not be loopback: pods reach it
        secure_port=6443,
        cert_dir=site.folder / "pki",  # it signs its own certificate and keeps it there
        token_auth_file=site.folder / "pki" / "tokens.csv",
        service_account_issuer="https://kubernetes.default.svc",
        service_account_key_file=account_key,
        service_account_signing_key_file=account_key,
        service_cluster_ip_range=site.network.services,
        authorization_mode="Node,RBAC",
        # On by default on some distributions; it asks for one more right of who makes children that block
        # their owner.
        enable_admission_plugins="OwnerReferencesPermissionEnforcement",
        allow_privileged=True,
        kubelet_preferred_address_types="InternalIP",
        audit_policy_file=site.folder / "audit.yaml",
        audit_log_path=site.folder / "log" / "audit.jsonl",
    )
    return [_kubelab(site), "kube-apiserver", *flags]


def _controller_manager(site: Site) -> list[str]:
    flags = _flags(
        kubeconfig=_config(site, "kcm"),
        leader_elect=False,
        use_service_account_credentials=True,
        service_account_private_key_file=site.folder / "pki" / "sa.key",
        root_ca_file=_authority(site),
    )
    return [_kubelab(site), "kube-controller-manager", *flags]


def _kubelet_command(site: Site) -> list[str]:
    flags = _flags(
        config=site.folder / "kubelet.yaml",
        kubeconfig=_config(site, "node"),
        root_dir=site.folder / "kubelet",
        cert_dir=site.folder / "kubelet" / "pki",
        hostname_override=NODE_NAME,
        node_ip=site.network.node,
    )
    return [_kubelab(site), "kubelet", *flags]


def _authority(site: Site) -> Path:
    """The API server's certificate followed by its authority's."""
    return site.folder / "pki" / "apiserver.crt"


def _write_identities(site: Site) -> None:
    """A token and a kubeconfig for each user, and the key that signs service accounts' tokens."""
    rows = []
    for name, (user, group) in _USERS.items():
        token = secrets.token_hex(16)
        rows.append(f"{token},{user},{name},{group}\n")
        _write_private(_config(site, name), json.dumps(_kubeconfig(site, name, token), indent=1))
    _write_private(site.folder / "pki" / "tokens.csv", "".join(rows))
    key = ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    _write_private(site.folder / "pki" / "sa.key", key.decode())


def _write_private(file: Path, text: str) -> None:
    file.touch(0o600)
    file.write_text(text)


def _kubeconfig(site: Site, user: str, token: str) -> dict[str, Any]:
    server = {"server": f"https://{site.network.node}:6443", "certificate-authority": str(_authority(site))}
    context = {"cluster": NODE_NAME, "user": user, "namespace": "default"}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NODE_NAME, "cluster": server}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": NODE_NAME, "context": context}],
        "current-context": NODE_NAME,
    }


_AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}


def _kubelet(site: Site) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": site.network.node,
        "containerRuntimeEndpoint": f"unix://{site.containerd}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{site.network.interface}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [site.network.dns],
        "clusterDomain": "cluster.local",
        "podLogsDir": str(site.folder / "podlogs"),
        # The machine's disk and memory are not the cluster's to tidy.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "maxPods": 500,
    }


def _proxy(site: Site) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(site.kubeconfig)},
        "mode": "iptables",
        "clusterCIDR": site.network.pods,
        "hostnameOverride": NODE_NAME,
        "conntrack": {
            "maxPerCore": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },  # as they are
    }


def _cni(site: Site) -> dict[str, Any]:
    """Each pod has a link of its own to the node, which routes: no bridge, so no bridge netfilter is
    needed."""
    addresses = {
        "type": "host-local",
        "dataDir": str(site.folder / "ipam"),
        "ranges": [[{"subnet": site.network.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipam": addresses}]}


def _base_spec(site: Site) -> dict[str, Any]:
    """What every container gets: the machine's programs, this checkout, its Python and the environments of
    `tests.clients`, read-only."""
    environments.CACHE.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["ctr", "oci", "spec"], capture_output=True, text=True, check=True)
    spec: dict[str, Any] = json.loads(done.stdout)
    own = {Path(path) for path in (_REPOSITORY, environments.CACHE, sys.prefix, sys.base_prefix)}
    binds = [
        (site.bin, Path(images.PROGRAMS)),
        *_same(_HOST_FOLDERS),
        *_same(sorted(own)),
        *_same(site.binds),
    ]
    for source, target in binds:
        if source.exists():
            mount = {
                "destination": str(target),
                "source": str(source),
                "type": "bind",
                "options": ["rbind", "ro"],
            }
            spec["mounts"].append(mount)
    return spec


def _same(paths: Iterable[str | Path]) -> list[tuple[Path, Path]]:
    return [(Path(path), Path(path)) for path in paths]


def _containerd(site: Site) -> str:
    """Only containerd reads TOML."""
    return f"""version = 2
root = "{site.folder}/containerd"
state = "{site.folder}/containerd-state"
[grpc]
  address = "{site.containerd}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{images.PAUSE}"
  restrict_oom_score_adj = true  # without CAP_SYS_RESOURCE a negative score is refused, and runc dies of it
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "{site.folder}/base.json"
  # For real images, which bring their own programs; a RuntimeClass names it.
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{PLAIN_RUNTIME}]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{site.folder}/cni"
"""


def _corefile(site: Site) -> str:
    return f"""cluster.local:53 {{
  bind {site.network.node}
  errors
  kubernetes cluster.local {{
    kubeconfig {site.kubeconfig} {NODE_NAME}
  }}
  cache 2
}}
"""
