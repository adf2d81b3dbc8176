"""What a training pod's environment says, one function a variable, each failing loudly.

Names stand in `edl_workflows.jobs.names`; whoever makes the pod sets them.
"""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from edl_workflows.agent.snapshots import SHARED_MEMORY, SnapshotFolder, node_folder
from edl_workflows.exceptions import InvalidError
from edl_workflows.jobs import names
from edl_workflows.protocol import addresses
from edl_workflows.protocol.nodes import NodeRef

_ANY_INTERFACE = "0.0.0.0"  # noqa: S104 - what `addresses.listen` says on a real cluster


def master_url(environ: Mapping[str, str]) -> str:
    """Base URL of the job master's HTTP API."""
    return "http://" + addresses.resolve(_required(environ, names.ENV_MASTER_ADDR))


def token(environ: Mapping[str, str]) -> str:
    """The job's bearer token."""
    return _required(environ, names.ENV_JOB_TOKEN)


def job_name(environ: Mapping[str, str]) -> str:
    """Name of the ElasticJob."""
    return _required(environ, names.ENV_JOB_NAME)


def namespace(environ: Mapping[str, str]) -> str:
    """Namespace of the ElasticJob."""
    return _required(environ, names.ENV_NAMESPACE)


def pod_name(environ: Mapping[str, str]) -> str:
    """Name of this pod."""
    return _required(environ, names.ENV_POD_NAME)


def node(environ: Mapping[str, str]) -> NodeRef:
    """This node's type and id."""
    node_type, node_id = _required(environ, names.ENV_NODE_TYPE), _number(environ, names.ENV_NODE_ID)
    try:
        return NodeRef(type=node_type, id=node_id)
    except ValidationError as error:
        raise InvalidError(
            f"environment variable {names.ENV_NODE_TYPE} is {node_type!r}: "
            f"it must be one of {', '.join(sorted(names.NODE_PORTS))}"
        ) from error


def rank(environ: Mapping[str, str]) -> int:
    """This node's rank among those of its type."""
    return _number(environ, names.ENV_NODE_RANK)


def cluster_version(environ: Mapping[str, str]) -> int:
    """The cluster version to which this training process belongs; the agent sets it."""
    return _number(environ, names.ENV_CLUSTER_VERSION)


def snapshots(environ: Mapping[str, str]) -> SnapshotFolder | None:
    """The node's copies of the model in shared memory; None where the agent keeps none."""
    folder = environ.get(names.ENV_SNAPSHOT_DIR, "")
    return SnapshotFolder(Path(folder)) if folder else None


def snapshot_folder(environ: Mapping[str, str], node: NodeRef) -> Path:
    """Where the agent keeps the node's copies: the same after it was started again in its pod. Without the job's uid, which
    a pod of the controller has, another at each start: names alone come again."""
    base = Path(environ.get(names.ENV_SHARED_MEMORY, "") or SHARED_MEMORY)
    return node_folder(base, environ.get(names.ENV_JOB_UID, "") or secrets.token_hex(8), node.type, node.id)


@dataclass(frozen=True)
class NodeEnvironment:
    """All that agent and training process must know of their node.

    Attributes:
        master: base URL of the master's API.
        token: bearer token of the job.
        job, namespace, pod: names.
        node: type and id.
        rank: among the nodes of the type.
    """

    master: str
    token: str
    job: str
    namespace: str
    pod: str
    node: NodeRef
    rank: int

    def __repr__(self) -> str:
        return f"NodeEnvironment({self.namespace}/{self.job} {self.node}, master {self.master})"

    @classmethod
    def read(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """Read it all.

        Raises:
            InvalidError: a variable is missing or malformed; the message names it.
        """
        return cls(
            master=master_url(environ),
            token=token(environ),
            job=job_name(environ),
            namespace=namespace(environ),
            pod=pod_name(environ),
            node=node(environ),
            rank=rank(environ),
        )

    def listen_address(self, version: int) -> str:
        """Where others reach this node's process of a cluster version."""
        host, port = addresses.listen(names.NODE_PORTS[self.node.type][version % 2])
        if host == _ANY_INTERFACE:
            return names.node_address(self.job, self.namespace, self.node.type, self.node.id, version)
        return f"{host}:{port}"  # without a pod network the process's own port is the address


def _required(environ: Mapping[str, str], name: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise InvalidError(
            f"environment variable {name} is not set: the agent and training code run in a pod of an ElasticJob, "
            "whose controller sets it"
        )
    return value


def _number(environ: Mapping[str, str], name: str) -> int:
    value = _required(environ, name)
    if not value.isascii() or not value.isdigit():
        raise InvalidError(f"environment variable {name} is {value!r}: it must be a whole number >= 0")
    return int(value)
