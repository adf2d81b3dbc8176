"""The words of TFJob: types of replicas, restart policies, ports. Upstream's spelling."""

import difflib
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator

VERSIONS = ("v1", "v1beta2", "v1beta1", "v1alpha2")
"""All that Kubeflow had, by one schema. The first is stored."""
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


def spellings(kind: ReplicaType) -> tuple[str, ...]:
    """The names of a type in lower case. Eval is the design document's."""
    return ("evaluator", "eval") if kind is ReplicaType.EVALUATOR else (kind.slug,)


def replica_type(key: str) -> ReplicaType:
    """The type that a key of ``tfReplicaSpecs`` means, in any case.

    Raises:
        ValueError: it means none.
    """
    for kind in ReplicaType:
        if key.lower() in spellings(kind):
            return kind
    near = difflib.get_close_matches(key.lower(), [kind.slug for kind in ReplicaType], n=1)
    meant = f"; did you mean {replica_type(near[0])}?" if near else ""
    raise ValueError(f"unknown type of replicas; types are {', '.join(ReplicaType)}{meant}")


def _check_key(key: str) -> str:
    replica_type(key)
    return key


ReplicaKey = Annotated[str, AfterValidator(_check_key)]
"""A type of replicas as a user spells it: upstream takes every case."""


class RestartPolicy(StrEnum):
    """What becomes of a replica that ends badly."""

    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


def container_of(template: dict[str, Any]) -> dict[str, Any]:
    """The container that a replica is about."""
    containers: list[dict[str, Any]] = template["spec"]["containers"]
    return next((c for c in containers if c.get("name") == CONTAINER), containers[0])
