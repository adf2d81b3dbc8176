"""Advice for single nodes: more memory after an OOM kill, a smaller size for a node that stays pending."""

import math

from edl_workflows.core.scaling.dlrover.bounds import bound_advice, job_problems, size_range
from edl_workflows.core.scaling.dlrover.resources import (
    Advice,
    NodeSize,
    OptimizerJob,
    OptimizerNode,
    empty_advice,
)

OOM_FACTOR = 2.0
MAX_OOM_GROWTH = 8_192.0
"""MiB that one incident adds at most."""
PENDING_SECONDS = 900.0
"""A node that is pending for longer gets a smaller size."""
PENDING_FACTOR = 0.5


def advise_oom_recovery(job: OptimizerJob) -> Advice:
    """More memory for each node that ran out of it.

    A node gets twice its own memory or its role's memory, whichever is more, but at most 8192 MiB more,
    within the bounds. Roles with ``autoScale: false`` don't change. A node without a memory size has no limit
    to raise, and a node at its upper bound gets no more; notes say so.
    """
    if wrong := job_problems(job):
        return empty_advice(*wrong)
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
    return bound_advice(job, Advice({}, sizes, reasons, tuple(notes)), tolerance=0.0)


def advise_pending_cut(job: OptimizerJob, now: float) -> Advice:
    """Half the cores and half the memory for each node that has been pending for more than 900 s.

    An amount is halved only if the half is above its lower bound. Nodes with GPUs are not halved. A node that
    can't be halved stays pending (upstream recreates it unchanged).

    Args:
        job: the present job.
        now: Unix seconds.
    """
    if wrong := job_problems(job):
        return empty_advice(*wrong)
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
    return bound_advice(job, Advice({}, sizes, reasons, tuple(notes)))


def _half(job: OptimizerJob, node: OptimizerNode, amount: str) -> float | None:
    """Half an amount, rounded up to a MiB or a tenth of a core; None if that is not allowed or not less."""
    has = node.resource.amount(amount)
    if not has:
        return None
    step = 10 if amount == "cpu" else 1
    half = math.ceil(has * PENDING_FACTOR * step) / step
    return half if size_range(job, node.role, amount, None).low < half < has else None
