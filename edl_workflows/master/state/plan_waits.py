"""What a ScalePlan that has not begun waits for, in words for people. Pure."""

from collections.abc import Iterable

from edl_workflows.jobs import names
from edl_workflows.master.state.cluster_versions import ChangeCause, VersionChange
from edl_workflows.master.state.job import JobState
from edl_workflows.master.state.nodes import JobNode

MAX_NAMED = 10
"""Nodes that are named one by one."""

_CAUSES = {
    ChangeCause.RECOVERY: "a lost node is being replaced",
    ChangeCause.ROLLBACK: "the plan before is being taken back",
    ChangeCause.MEMBERSHIP: "workers that joined are being let in",
}


def describe_wait(state: JobState) -> str:
    """Why the job can't be changed now; "" if it can. The same words for as long as nothing changes."""
    active, change = state.versions.active, state.versions.change
    if change is not None and change.cause in _CAUSES:
        return f"{_CAUSES[change.cause]}{_of_whom(state, change)}"
    if active is None:
        return f"training has not begun{_of_whom(state, change)}"
    if state.versions.trained < active.number:
        return (
            f"no step of cluster version {active.number} was reported: programs say that they train by "
            "`connect()` of edl_workflows.agent, or by an adapter that calls it"
        )
    return ""


def _of_whom(state: JobState, change: VersionChange | None) -> str:
    """The nodes that a change waits for."""
    if not state.checked:
        return ": the nodes are being checked (nodeCheck)"
    wanted = [node for node in state.nodes if node.live and node.type != names.EVALUATOR_TYPE]
    absent = [node for node in wanted if not node.registered]
    if absent:
        return (
            f": {_listed(absent)} did not register with the job's master; their containers must run, and start the "
            "program with `edl agent run -- PROGRAM`"
        )
    members = [
        node
        for node in wanted
        if change and node.id in change.target and node.type == state.settings.member_type
    ]
    unready = [node for node in members if change and str(node) not in change.ready]
    return f": the programs of {_listed(unready)} are not ready" if unready else ""


def _listed(nodes: Iterable[JobNode]) -> str:
    found = [str(node) for node in sorted(nodes, key=lambda node: (node.type, node.id))]
    more = len(found) - MAX_NAMED
    return ", ".join(found[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
