"""Whole jobs in memory: time-outs, suspension, the end, and the size of the stored state."""

from edl_workflows.core.kubernetes import names
from edl_workflows.services.master.state.settings import JobSettings, RoleSettings, Timeouts
from edl_workflows.services.master.state.stored_state import StoredState
from tests.unit.services.master.simulated_job import SimulatedJob
from tests.unit.services.master.state.whole_jobs import make_job, servers_of


def test_a_critical_node_pending_for_too_long_fails_the_job() -> None:
    """If a critical node is pending for too long, the job fails and says so."""
    roles = {"ps": RoleSettings(replicas=1), "worker": RoleSettings(replicas=1)}
    job = SimulatedJob(JobSettings("job", "default", roles, timeouts=Timeouts(pending=100.0)))
    job.control()
    job.observe()
    job.now += 200
    job.settle()
    assert job.state.outcome is not None
    assert job.state.outcome.reason == "PendingTimeout"


def test_waiting_while_suspended_is_no_pending_timeout() -> None:
    """A job that was suspended before its pods ran has all its time after it is resumed."""
    roles = {"worker": RoleSettings(replicas=1)}
    running = JobSettings("job", "default", roles, timeouts=Timeouts(pending=100.0))
    job = SimulatedJob(running)
    job.state.settings = JobSettings("job", "default", roles, suspend=True, timeouts=running.timeouts)
    job.settle()
    job.now += 3600
    job.settle()
    job.state.settings = running
    job.settle()
    assert job.state.outcome is None
    job.now += 101
    job.settle()
    assert job.state.outcome is not None


def test_workers_that_leave_data_behind_fail_the_job() -> None:
    """A job whose workers all exit with 0 before all data is consumed fails."""
    job = make_job("worker=1")
    job.kill(("worker", 0), code=0)
    job.pods["worker", 0].phase = type(job.pods["worker", 0].phase).SUCCEEDED
    job.calm(2)
    assert job.state.outcome is not None
    assert job.state.outcome.reason == "DataNotConsumed"


def test_a_suspended_job_replaces_nobody_and_resumes_with_its_data() -> None:
    """Nodes that are removed by a suspension are no failures, and all ranks return at the resume. The events
    tell of the resume, not of killed nodes; a node that is killed later is reported as usual."""
    job = make_job(shards=300)
    job.save_periodically()
    running = job.settings
    suspended = JobSettings(
        running.name, running.namespace, running.roles, suspend=True, timeouts=running.timeouts
    )
    job.settings = job.state.settings = suspended
    for ref in list(job.pods):
        del job.pods[ref]
    job.observe()
    job.commit()
    assert len(job.created) == 4
    job.settings = running
    job.crash()
    job.calm(10)
    assert len(servers_of(job)) == 2
    assert job.state.versions.active is not None
    assert job.state.versions.active.restore is not None
    assert job.state.restarts.counts == {"Resume": 1}
    job.kill(("worker", 3))
    job.calm(5)
    assert job.state.restarts.counts == {"Resume": 1, "Killed": 1}
    job.calm(150)
    assert job.state.outcome is not None
    assert job.models[job.state.versions.active.number] == set(range(300))


def test_the_stored_state_stays_small() -> None:
    """A big job's document is far below what a ConfigMap holds."""
    job = make_job("ps=8,worker=64", shards=1_000_000)
    job.calm(5)
    assert len(job.stored) < 60_000
    assert StoredState.from_json(job.stored).to_json() == job.stored


def test_names_of_pods_are_those_of_the_nodes() -> None:
    """A plan names pods, which are mapped to the nodes of the registry."""
    job = make_job()
    found = job.state.nodes.by_pod("job", names.node_name("job", "ps", 1))
    assert found is not None
    assert (found.type, found.id) == ("ps", 1)
