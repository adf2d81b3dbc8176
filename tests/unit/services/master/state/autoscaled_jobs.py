"""Simulated jobs whose master plans their size, for tests."""

from collections.abc import Callable
from typing import Any

from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus, OptimizeMode
from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import Usage
from edl_workflows.services.master.state.settings import AutoscalingSettings, JobSettings, RoleSettings
from tests.unit.services.master.simulated_job import SimulatedJob, SimulatedPod

GIB = 2.0**30
FIRST = "job-optimize-1"
SINGLE = AutoscalingSettings(OptimizeMode.SINGLE_JOB, allowed=True)
SHOWN_ONLY = AutoscalingSettings(OptimizeMode.SINGLE_JOB)


SIZE = NodeResource(cpu="4", memory="4Gi")


def make_settings(optimizing: AutoscalingSettings = SINGLE, **more: Any) -> JobSettings:
    roles = {"ps": RoleSettings(1, resource=SIZE), "worker": RoleSettings(1, resource=SIZE)}
    limits = {"cpu": 40.0, "memory": 64 * GIB}
    said: dict[str, Any] = {"roles": roles, "limits": limits, "optimizing": optimizing, **more}
    return JobSettings("job", "default", **said)


def constant_usage(ps: float, worker: float = 2.0) -> Callable[[SimulatedPod], Usage]:
    def used(pod: SimulatedPod) -> Usage:
        return Usage(cpu=ps if pod.type == names.PS_TYPE else worker, memory=1000.0)

    return used


def autoscaled_job(settings: JobSettings | None = None, ps: float = 1.2) -> SimulatedJob:
    job = SimulatedJob(settings or make_settings(), shards=100_000)
    job.usage = constant_usage(ps)
    job.calm(5)
    assert job.state.versions.settled
    return job


def pass_time(job: SimulatedJob, seconds: float) -> None:
    """Time passes; the autoscaler samples every 15 s."""
    until = job.now + seconds
    while job.now < until:
        job.calm(3)
        job.now += 12.0
        job.look()
        job.commit()


def run_until_decided(job: SimulatedJob) -> None:
    """Up to a decision that is not stored yet."""
    for _ in range(40):
        job.calm(3)
        job.now += 12.0
        job.look()
        if job.state.autoscaling.open is not None:
            return
    raise AssertionError("nothing was decided")


def shown_plan(job: SimulatedJob) -> AutoscalingStatus:
    assert job.state.autoscaling.shown is not None
    return job.state.autoscaling.shown
