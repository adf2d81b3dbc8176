"""The words of TrainingJob: roles, launchers, ports. Upstream's spelling."""

from enum import StrEnum


class TrainingRole(StrEnum):
    """The roles of a job's pods, in the order in which they are started."""

    MASTER = "master"
    PSERVER = "pserver"
    TRAINER = "trainer"

    @property
    def serves(self) -> bool:
        """Whether trainers depend on this role."""
        return self is not TrainingRole.TRAINER


class Launcher(StrEnum):
    """What starts a role's program."""

    PADDLE_K8S = "paddle_k8s"
    """The entry script of upstream's images."""
    SH = "sh"
    """The shell, with the role's ``entrypoint``."""


PORT = 7164
"""The first port of pservers and trainers."""
MASTER_PORT = 8080
ETCD_PORT = 2379
ETCD_PEER_PORT = 2380
ETCD_IMAGE = "quay.io/coreos/etcd:v3.2.1"
IMAGE = "paddlepaddle/paddlecloud-job"
LEGACY_GPU = "alpha.kubernetes.io/nvidia-gpu"
"""What GPUs were called up to Kubernetes 1.9."""
GPU = "nvidia.com/gpu"
