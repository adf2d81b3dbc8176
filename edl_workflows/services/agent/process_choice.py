"""Decides which training processes a node runs: the pure part of
`edl_workflows.services.agent.supervisor`."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.core.protocol.nodes import Directive, NodeRef


@dataclass(frozen=True)
class ProcessChoice:
    """The processes to start and to end now.

    Attributes:
        start: versions whose process must be started.
        end: versions whose process must be terminated.
    """

    start: tuple[TrainingCluster, ...] = ()
    end: tuple[int, ...] = ()


def choose_processes(
    directive: Directive, node: NodeRef, running: AbstractSet[int], ended: AbstractSet[int]
) -> ProcessChoice:
    """Compare the processes that the directive asks for with the running ones.

    Versions whose numbers have the same parity use the same port, which a process keeps until it exits. So if
    a process is in the way of a new one, this choice ends it, and a later choice starts the new one.

    Args:
        directive: the master's directive.
        node: the node whose processes are chosen.
        running: for each running process, the version for which it was started.
        ended: versions whose process has exited and must not be restarted.
    """
    desired = {
        cluster.process_of(node.type, node.id): cluster
        for cluster in directive.clusters
        if _takes_part(node, cluster) and not _broken(cluster, directive)
    }
    start = [
        cluster
        for version, cluster in desired.items()
        if version == cluster.version  # a process that goes on from an earlier version can't be started again
        and version not in running | ended
        and not (directive.lost and cluster == directive.active)
    ]
    in_the_way = {version for version in running - set(desired) if any(_same_port(version, c) for c in start)}
    broken = {c.process_of(node.type, node.id) for c in directive.clusters if _broken(c, directive)}
    needed = {version for version in running if _still_needed(version, directive)}
    kept = set(desired) | (needed - in_the_way - broken)
    end = running - kept
    return ProcessChoice(
        start=tuple(
            cluster for cluster in start if not any(_same_port(version, cluster) for version in running)
        ),
        end=tuple(sorted(end)),
    )


def _takes_part(node: NodeRef, cluster: TrainingCluster) -> bool:
    """Whether the node has a process in a version, either as a member or because its role has no members."""
    is_member = node.type == (names.WORKER_TYPE if cluster.collective else names.PS_TYPE)
    return not is_member or cluster.rank_of(node.type, node.id) is not None


def _broken(cluster: TrainingCluster, directive: Directive) -> bool:
    """Whether a collective version lost a member, so that its processes would block forever in a collective
    operation. With parameter servers the processes notice the loss themselves, and one may still save."""
    return directive.lost and cluster.collective and cluster == directive.active


def _still_needed(version: int, directive: Directive) -> bool:
    """Whether the job may still roll back to a version, because the active version has not trained yet."""
    return directive.active is not None and version < directive.active.version > directive.trained


def _same_port(version: int, cluster: TrainingCluster) -> bool:
    return version % 2 == cluster.version % 2
