"""The words of TFJob: types of replicas, restart policies, ports. Upstream's spelling."""

from enum import StrEnum
from typing import Any, Literal

VERSIONS = ("v1", "v1alpha2")
"""The first is stored."""
CONTAINER = "tensorflow"
"""The container that a replica is about; in a template without one of this name it is the first."""
PORT_NAME = "tfjob-port"
PORT = 2222


class ReplicaType(StrEnum):
    """What a replica does. A Chief decides about the job's success, else worker 0."""

    CHIEF = "Chief"
    MASTER = "Master"
    PS = "PS"
    WORKER = "Worker"
    EVALUATOR = "Evaluator"

    @property
    def slug(self) -> str:
        """As it stands in names, labels and TF_CONFIG."""
        return self.value.lower()

    @property
    def decides(self) -> bool:
        """Whether its end is the job's."""
        return self in (ReplicaType.CHIEF, ReplicaType.MASTER)


ReplicaKey = Literal[
    "Chief", "Master", "PS", "Worker", "Evaluator", "Eval",
    "chief", "master", "ps", "worker", "evaluator", "eval",
]  # fmt: skip
"""Spellings that upstream takes for the types; Eval is the design document's."""


class RestartPolicy(StrEnum):
    """What becomes of a replica that ends badly."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


def replica_type(key: str) -> ReplicaType:
    """The type that a key of ``tfReplicaSpecs`` means."""
    lower = "evaluator" if key.lower() == "eval" else key.lower()
    return next(kind for kind in ReplicaType if kind.slug == lower)


def container_of(template: dict[str, Any]) -> dict[str, Any]:
    """The container that a replica is about."""
    containers: list[dict[str, Any]] = template["spec"]["containers"]
    return next((c for c in containers if c.get("name") == CONTAINER), containers[0])
