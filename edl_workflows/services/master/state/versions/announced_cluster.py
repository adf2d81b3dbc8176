"""A cluster version as it is announced to the nodes: its members with their addresses, and its checkpoint."""

from functools import lru_cache

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import CheckpointRef, Member, TrainingCluster
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.versions.cluster_versions import ClusterVersion


def training_cluster(state: JobState, version: ClusterVersion) -> TrainingCluster:
    """The version as its nodes are told of it."""
    settings, chief, number = state.settings, state.chief, version.number
    job = (settings.name, settings.namespace, settings.member_type)
    members = _version_members(job, number, version.members, version.processes)
    if settings.collective:
        return TrainingCluster(
            version=number,
            workers=members,
            max_workers=state.max_workers,
            replica_size=state.rendezvous.node_unit,
            restore=version.restore,
            chief_type=settings.member_type,
            chief_id=version.members[0],
        )
    return TrainingCluster(
        version=number,
        ps=members,
        restore=_restore_of_joiner(state, version),
        chief_type=settings.chief_type,
        chief_id=chief.id if chief else 0,
    )


@lru_cache(maxsize=4)
def _version_members(
    job: tuple[str, str, str], number: int, members: tuple[int, ...], processes: tuple[int, ...]
) -> list[Member]:
    """The members of a version, which may be a thousand. They are read after each change, and rarely differ.

    Args:
        job: its name, its namespace, and the role of the members.
        number: of the version.
        members: node ids by rank.
        processes: see `ClusterVersion.processes`.
    """
    name, namespace, role = job
    return [
        Member(
            rank=rank,
            id=node_id,
            address=names.node_address(name, namespace, role, node_id, number),
            process=process,
        )
        for rank, (node_id, process) in enumerate(zip(members, processes or (0,) * len(members), strict=True))
    ]


def _restore_of_joiner(state: JobState, version: ClusterVersion) -> CheckpointRef | None:
    """The checkpoint that a process of a version without a group starts from.

    Without parameter servers, each worker has the model. One that joins while the version trains starts from
    the newest checkpoint: that with which the version began may have been removed since then.
    """
    newest = state.checkpoints.newest
    joins = not version.members and state.versions.trained == version.number
    return newest.ref if joins and newest is not None else version.restore
