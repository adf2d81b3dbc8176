"""Brain's algorithms by name, and the algorithms of each stage."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from edl_workflows.core.scaling.dlrover.bounds import count_range
from edl_workflows.core.scaling.dlrover.brain import ps_algorithms as ps
from edl_workflows.core.scaling.dlrover.brain import worker_algorithms as workers
from edl_workflows.core.scaling.dlrover.brain.request import BrainAlgorithm, BrainRequest
from edl_workflows.core.scaling.dlrover.ps_stages import OptimizerQuestion, OptimizerStage
from edl_workflows.core.scaling.dlrover.resources import (
    PS,
    WORKER,
    Advice,
    Range,
    empty_advice,
    follow_advice,
    merge_advice,
)

ALGORITHMS: Mapping[str, BrainAlgorithm] = MappingProxyType(
    {
        algorithm.__name__: algorithm
        for algorithm in (
            ps.optimize_job_hot_ps_resource,
            ps.optimize_job_ps_cold_create_resource,
            ps.optimize_job_ps_create_resource,
            ps.optimize_job_ps_init_adjust_resource,
            ps.optimize_job_ps_oom_resource,
            ps.optimize_job_ps_resource_util,
            workers.optimize_job_worker_create_resource,
            workers.optimize_job_worker_create_oom_resource,
            workers.optimize_job_worker_resource,
            workers.optimize_job_fair_share,
        )
    }
)
"""The nine algorithms of DLRover's Brain, and fair share. A new one is a function and a row here."""


def optimize_job(question: OptimizerQuestion, request: BrainRequest) -> Advice:
    """Advise a job in a stage.

    A job above its fair share first gives workers back; all other advice stays within the share.

    - CREATE: the first worker; parameter servers as former jobs needed them, or else the cold start's.
    - WORKER_INITIAL: workers.
    - PS_INITIAL: parameter servers, or more memory for one that ran out of it.
    - RUNNING: the first of these that changes anything: memory after OOM kills, hot parameter servers, idle
      ones, workers.
    """
    request = replace(request, phase=question.phase)
    share = workers.optimize_job_fair_share(request)
    if not share.empty:
        return share
    return _BY_STAGE[question.stage](question, _within_share(request))


def _create(_: OptimizerQuestion, request: BrainRequest) -> Advice:
    advice = workers.optimize_job_worker_create_resource(request)
    request = replace(
        request, job=follow_advice(request.job, advice)
    )  # parameter servers get what the limits then leave
    servers = ps.optimize_job_ps_create_resource(request)
    if servers.empty and PS in request.job.roles:
        servers = ps.optimize_job_ps_cold_create_resource(request)
    return merge_advice(advice, servers)


def _worker_initial(_: OptimizerQuestion, request: BrainRequest) -> Advice:
    return _first(
        request, workers.optimize_job_worker_create_oom_resource, workers.optimize_job_worker_resource
    )


def _ps_initial(_: OptimizerQuestion, request: BrainRequest) -> Advice:
    if any(node.oom for node in request.job.of(PS)):
        return ps.optimize_job_ps_oom_resource(request)
    return ps.optimize_job_ps_init_adjust_resource(request)


def _running(question: OptimizerQuestion, request: BrainRequest) -> Advice:
    oom = (ps.optimize_job_ps_oom_resource, workers.optimize_job_worker_create_oom_resource)
    servers = (ps.optimize_job_hot_ps_resource, ps.optimize_job_ps_resource_util)
    return _first(
        request, *oom, *(servers if question.ps_may_change else ()), workers.optimize_job_worker_resource
    )


_BY_STAGE: Mapping[OptimizerStage, Callable[[OptimizerQuestion, BrainRequest], Advice]] = MappingProxyType(
    {
        OptimizerStage.CREATE: _create,
        OptimizerStage.WORKER_INITIAL: _worker_initial,
        OptimizerStage.PS_INITIAL: _ps_initial,
        OptimizerStage.RUNNING: _running,
    }
)


def _first(request: BrainRequest, *algorithms: BrainAlgorithm) -> Advice:
    """The first advice with changes; if there is none, empty advice with all notes."""
    notes: list[str] = []
    waiting = False
    for algorithm in algorithms:
        advice = algorithm(request)
        notes += advice.notes
        waiting = waiting or advice.waiting
        if not advice.empty:
            return replace(advice, notes=tuple(dict.fromkeys(notes)))
    return empty_advice(*dict.fromkeys(notes), waiting=waiting)


def _within_share(request: BrainRequest) -> BrainRequest:
    """The request with the fair share as the upper bound of workers."""
    job, share = request.job, workers.fair_share(request)
    if isinstance(share, str) or WORKER not in job.roles:
        return request
    role = job.roles[WORKER]
    allowed = count_range(job, WORKER)
    if share >= allowed.high:
        return request
    most = max(allowed.low, share)
    least = f", and at least {most:g} are allowed" if most > share else ""
    reason = f"its fair share of the cluster is {share}{least}"
    bounds = replace(role.bounds, count=Range(allowed.low, most), fewer_because=reason)
    return replace(request, job=replace(job, roles={**job.roles, WORKER: replace(role, bounds=bounds)}))
