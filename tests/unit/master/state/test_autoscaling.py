"""A master's own plans: when the optimizer is asked, what may be carried out, what becomes of a plan, and what is shown."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.jobs import names
from edl_workflows.jobs.elastic_job.model import AutoscalingStatus, OptimizeMode
from edl_workflows.jobs.scale_plan.model import NodeResource, Phase, ReplicaResourceSpec, ScalePlanSpec
from edl_workflows.master.state import autoscale_steps, views
from edl_workflows.master.state.job import JobDocument
from edl_workflows.master.state.settings import JobSettings, Optimizing, Role, Timeouts
from edl_workflows.master.testing import SimulatedJob, SimulatedPod
from edl_workflows.protocol.nodes import Usage
from edl_workflows.scaling.ps_stages import Stage

GIB = 2.0**30
FIRST = "job-autoscale-1"
SINGLE = Optimizing(OptimizeMode.SINGLE_JOB, allowed=True)
SHOWN_ONLY = Optimizing(OptimizeMode.SINGLE_JOB)


def _settings(optimizing: Optimizing = SINGLE, **more: Any) -> JobSettings:
    size = NodeResource(cpu="4", memory="4Gi")
    roles = {"ps": Role(1, resource=size), "worker": Role(1, resource=size)}
    limits = {"cpu": 40.0, "memory": 64 * GIB}
    return JobSettings("job", "default", roles, **{"limits": limits, "optimizing": optimizing, **more})


def _usage(ps: float, worker: float = 2.0) -> Callable[[SimulatedPod], Usage]:
    def used(pod: SimulatedPod) -> Usage:
        return Usage(cpu=ps if pod.type == names.PS_TYPE else worker, memory=1000.0)

    return used


def _job(settings: JobSettings | None = None, ps: float = 1.2) -> SimulatedJob:
    job = SimulatedJob(settings or _settings(), shards=100_000)
    job.usage = _usage(ps)
    job.calm(5)
    assert job.state.versions.settled
    return job


def _pass(job: SimulatedJob, seconds: float) -> None:
    """Time passes; the autoscaler samples every 15 s."""
    until = job.now + seconds
    while job.now < until:
        job.calm(3)
        job.now += 12.0
        job.look()
        job.commit()


def _shown(job: SimulatedJob) -> AutoscalingStatus:
    assert job.state.autoscaling.shown is not None
    return job.state.autoscaling.shown


def test_a_job_grows_by_a_plan_of_its_own() -> None:
    """A server that is used by 30 % serves three times as many workers: a ScalePlan says so with its reason, is carried
    out as anybody's, and the job is a stage further."""
    job = _job()
    _pass(job, 250)
    plan = job.plans[FIRST]
    assert plan.spec is not None
    assert plan.spec.replica_resource_specs["worker"].replicas == 3
    assert "the busiest parameter server uses 30%" in plan.spec.reason
    assert plan.phase is Phase.SUCCEEDED
    assert len(job.state.nodes.live("worker")) == 3
    assert job.state.autoscaling.progress.stage is not Stage.WORKER_INITIAL
    assert f"{FIRST} was carried out" in _shown(job).notes[0]
