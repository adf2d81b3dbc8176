"""What a program says of changes of its parameter servers: a change that it does not survive is refused, its
training is not.
"""

import pytest

from edl_workflows.core.jobs.scale_plan.model import (
    NodeResource,
    ReplicaResourceSpec,
    ScalePlanPhase,
    ScalePlanSpec,
)
from edl_workflows.core.protocol.nodes import (
    NodeRef,
    ProcessReport,
    ProcessState,
    ServerChanges,
    ServerReport,
)
from edl_workflows.core.scaling.dlrover.resources import Range
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages, views
from edl_workflows.services.master.state.autoscale.autoscale_steps import optimizer_job
from edl_workflows.services.master.state.rollouts.rollout import Rollout
from edl_workflows.services.master.state.settings import JobSettings
from tests.unit.services.master.simulated_job import SimulatedJob

MORE = ScalePlanSpec(replica_resource_specs={"ps": ReplicaResourceSpec(replicas=3)})
MOVED = ScalePlanSpec(migrate_ranks={0: NodeResource(cpu="2")})
WORKERS = ScalePlanSpec(replica_resource_specs={"worker": ReplicaResourceSpec(replicas=2)})


@pytest.fixture
def job() -> SimulatedJob:
    """A job with two servers that trains."""
    made = SimulatedJob(JobSettings("job", "default", parse_nodes("ps=2,worker=1")), 10_000)
    made.calm(12)
    return made


def say(
    job: SimulatedJob, changes: ServerChanges, version: int = 1, state: ProcessState = ProcessState.READY
) -> None:
    """The chief's process of a version says which changes its model survives."""
    servers = ServerReport(changes=changes, reason="a table for each server")
    node = NodeRef(type="worker", id=0)
    messages.record_process_report(
        job.state, ProcessReport(node=node, version=version, state=state, servers=servers)
    )
    job.settle()


def carried_out(job: SimulatedJob, spec: ScalePlanSpec, name: str = "plan") -> Rollout:
    """A plan at its end."""
    job.submit(name, spec)
    for _ in range(60):
        job.calm(1)
        run = job.plans[name].run
        if run is not None and run.phase.final:
            return run
    pytest.fail(f"the plan does not end: {job.plans[name].run}")


@pytest.mark.parametrize(
    ("changes", "spec", "refused"),
    [
        (ServerChanges.ANY, MORE, ""),
        (ServerChanges.SAME_COUNT, MORE, "spec.replicaResourceSpecs.ps.replicas: the number of"),
        (ServerChanges.SAME_COUNT, MOVED, ""),
        (ServerChanges.NEVER, MORE, "spec.replicaResourceSpecs.ps.replicas: the number of"),
        (ServerChanges.NEVER, MOVED, "spec.migratePods: parameter servers can't be replaced"),
        (ServerChanges.NEVER, WORKERS, ""),
    ],
)
def test_plans_are_refused_as_the_program_says(
    job: SimulatedJob, changes: ServerChanges, spec: ScalePlanSpec, refused: str
) -> None:
    """A refused plan fails before anything happens, with the field and the program's reason; any other is
    carried out.
    """
    say(job, changes)
    plan = carried_out(job, spec)
    if not refused:
        assert plan.phase is ScalePlanPhase.SUCCEEDED, plan
        return
    assert (plan.phase, plan.reason) == (ScalePlanPhase.FAILED, "InvalidPlan")
    assert refused in plan.message
    assert "a table for each server" in plan.message
    assert len(plan.steps) == 1, "it never began"
    step = job.steps[1]
    job.calm(5)
    assert job.steps[1] > step, "it trains"


def test_status_says_it_before_anybody_plans(job: SimulatedJob) -> None:
    """The status shows which changes of servers the program survives, also after the master was replaced. For
    a program that does not tell, it shows Unknown."""
    assert views.job_status(job.state, job.now)["parameterServers"]["changes"] == "Unknown"
    say(job, ServerChanges.NEVER)
    job.commit()
    job.crash()
    said = views.job_status(job.state, job.now)["parameterServers"]
    assert said == {"changes": "Never", "reason": "a table for each server"}
    without = SimulatedJob(JobSettings("job", "default", parse_nodes("worker=1")))
    assert "parameterServers" not in views.job_status(without.state, without.now)


def test_version_that_would_be_another_model_is_given_up(job: SimulatedJob) -> None:
    """While it prepares the next version, a process finds that its model would differ. The plan fails before
    any process stops, and the finding is kept although other processes know less."""
    job.submit("plan", MORE)
    for _ in range(20):
        job.calm(1)
        change = job.state.versions.change
        if change is not None and change.number:
            break
    change = job.state.versions.change
    assert change is not None
    say(job, ServerChanges.SAME_COUNT, change.number, ProcessState.UNFIT)
    job.calm(3)
    run = job.plans["plan"].run
    assert run is not None
    assert (run.phase, run.reason) == (ScalePlanPhase.FAILED, "SwitchFailed")
    assert "with other servers the model would differ: a table for each server" in run.message
    active = job.state.versions.active
    assert active is not None
    assert active.number == 1
    say(job, ServerChanges.ANY)
    assert carried_out(job, MORE, "again").reason == "InvalidPlan"


def test_planner_leaves_such_servers_alone(job: SimulatedJob) -> None:
    """The optimizer does not change the number of servers if the program can't have another one, and changes
    nothing at all about servers that can't be replaced."""
    say(job, ServerChanges.SAME_COUNT)
    role = optimizer_job(job.state, job.now).roles["ps"]
    assert role.bounds.count == Range(2, 2)
    assert role.auto_scale
    say(job, ServerChanges.NEVER)
    assert not optimizer_job(job.state, job.now).roles["ps"].auto_scale


def test_warnings_of_the_program_are_in_the_status(job: SimulatedJob) -> None:
    """What a program warns of, such as a variable that is not spread over the servers, is in the job's
    status; the newest report counts."""
    for warnings in (["on one parameter server each: table (12.0 MiB)"], []):
        servers = ServerReport(changes=ServerChanges.ANY, warnings=warnings)
        node, state = NodeRef(type="worker", id=0), ProcessState.READY
        messages.record_process_report(
            job.state, ProcessReport(node=node, version=1, state=state, servers=servers)
        )
        assert views.job_status(job.state, job.now)["warnings"] == warnings
