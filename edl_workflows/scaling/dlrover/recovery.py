"""Plans for single nodes in trouble: more memory after one ran out of it, less of everything for one that finds no place."""

import math

from edl_workflows.scaling.dlrover.bounds import bound_plan, job_problems, size_range
from edl_workflows.scaling.dlrover.resources import (
    NodeSize,
    OptimizerJob,
    OptimizerNode,
    ResourcePlan,
    empty_plan,
)

OOM_FACTOR = 2.0
MAX_OOM_GROWTH = 8_192.0
"""MiB that one incident adds at most."""
PENDING_SECONDS = 900.0
"""A node that has been pending for longer is cut."""
PENDING_FACTOR = 0.5


def oom_recovery_plan(job: OptimizerJob) -> ResourcePlan:
    """More memory for each node that ran out of it: max(twice its own, its role's), at most 8192 MiB more, within bounds.

    Roles with ``autoScale: false`` are left alone. A node that has no memory size has no limit that could be raised, and one
    that has the most there is gets no more; both are said in the notes.
    """
    if wrong := job_problems(job):
        return empty_plan(*wrong)
    sizes: dict[str, NodeSize] = {}
    reasons: dict[str, str] = {}
    notes: list[str] = []
    for node in sorted(job.nodes, key=lambda node: node.name):
        if not node.oom:
            continue
        has = node.resource.memory
        if not has:
            notes.append(f"{node.name} ran out of memory, but has no memory size that could be raised")
            continue
        role = job.roles[node.role].resource.memory or 0.0
        most = size_range(job, node.role, "memory", has).high
        memory = min(max(OOM_FACTOR * has, role), has + MAX_OOM_GROWTH, most)
        if memory <= has:
            notes.append(f"{node.name} ran out of memory, but has the most there is: {has:g} of {most:g} MiB")
            continue
        sizes[node.name] = NodeSize(memory=float(math.floor(memory)))
        reasons[node.name] = "it ran out of memory"
    return bound_plan(job, ResourcePlan({}, sizes, reasons, tuple(notes)), tolerance=0.0)


def pending_cut_plan(job: OptimizerJob, now: float) -> ResourcePlan:
    """Half the cores and half the memory for each node that has been pending for more than 900 s, each where half is more
    than the least that the bounds allow.

    Nodes with GPUs are never cut. A node that can't be cut is left to wait (upstream makes it anew as it was).

    Args:
        job: as it is.
        now: Unix seconds.
    """
    if wrong := job_problems(job):
        return empty_plan(*wrong)
    sizes: dict[str, NodeSize] = {}
    reasons: dict[str, str] = {}
    notes: list[str] = []
    for node in sorted(job.nodes, key=lambda node: node.name):
        if node.pending_since is None or not now - node.pending_since > PENDING_SECONDS:
            continue
        waited = f"it has been pending for {now - node.pending_since:.0f} s"
        if node.resource.gpu:
            notes.append(f"{node.name} is not cut: it has GPUs ({waited})")
            continue
        half = NodeSize(cpu=_half(job, node, "cpu"), memory=_half(job, node, "memory"))
        if half.empty:
            notes.append(f"{node.name} is not cut: half of it is less than is allowed ({waited})")
            continue
        sizes[node.name], reasons[node.name] = half, waited
    return bound_plan(job, ResourcePlan({}, sizes, reasons, tuple(notes)))


def _half(job: OptimizerJob, node: OptimizerNode, amount: str) -> float | None:
    """Half of what a node has, rounded up to a whole MiB or tenth of a core; None where that is not allowed or no less."""
    has = node.resource.amount(amount)
    if not has:
        return None
    step = 10 if amount == "cpu" else 1
    half = math.ceil(has * PENDING_FACTOR * step) / step
    return half if size_range(job, node.role, amount, None).low < half < has else None
