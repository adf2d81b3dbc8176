"""Processes that crash each time they prepare the next cluster version: no job waits for them for ever."""

import pytest

from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlanPhase, ScalePlanSpec
from edl_workflows.core.protocol.nodes import CrashReport, NodeRef
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages
from edl_workflows.services.master.state.nodes.registry import NodeStatus
from edl_workflows.services.master.state.settings import JobSettings, Timeouts
from tests.unit.services.master.simulated_job import SimulatedJob

BUDGET = 3
"""restartCount, unless a role says it."""


def job() -> SimulatedJob:
    """Two servers and two workers that train."""
    timeouts = Timeouts(verdict=0.0, heartbeat=1e6, prepare=900.0)
    settings = JobSettings("job", "default", parse_nodes("ps=2,worker=2"), timeouts=timeouts)
    found = SimulatedJob(settings, 10_000)
    found.calm(5)
    assert found.state.versions.settled
    return found


def crash(job: SimulatedJob, node: str, crashes: int, version: int = 2, code: int = 1) -> None:
    """A node's agent says that the process of a version crashed again."""
    kind, _, node_id = node.partition("-")
    messages.record_crash_report(
        job.state,
        CrashReport(
            node=NodeRef(type=kind, id=int(node_id)),
            incarnation=node.replace("-", ""),
            version=version,
            crashes=crashes,
            code=code,
            last_lines="Traceback\nValueError: no such layer\n",
        ),
    )
    job.settle()


def failure(job: SimulatedJob) -> str:
    """Why the job failed; "" while it has not."""
    outcome = job.state.outcome
    return f"{outcome.reason}: {outcome.message}" if outcome else ""


def prepare_recovery(job: SimulatedJob) -> None:
    """A server is lost, and the next version has its number."""
    job.kill(("ps", 0))
    until_prepared(job)


def until_prepared(job: SimulatedJob) -> None:
    """All goes well until a version has its number, and none of its processes is ready."""
    for _ in range(20):
        for _ in job.everything():
            change = job.state.versions.change
            if job.state.outcome is not None or (change is not None and change.number and not change.ready):
                job.settle()  # a master looks every second
                return
    raise AssertionError("no version was prepared")


@pytest.mark.parametrize(("code", "fatal"), [(1, True), (139, False), (137, False)])
def test_recovery_ends_when_its_budget_is_used_up(code: int, fatal: bool) -> None:
    """Crashes up to the budget change nothing. With one more, the node has failed: a fatal exit code fails
    the job with the last line of output, and after any other the node is replaced at the cost of a
    restart."""
    it = job()
    prepare_recovery(it)
    for crashes in range(1, BUDGET + 1):
        crash(it, "worker-0", crashes, code=code)
    assert not failure(it)
    crash(it, "worker-0", BUDGET + 1, code=code)

    if not fatal:
        assert not failure(it)
        chief = it.state.chief
        assert chief is not None
        assert (chief.id, chief.relaunches) == (2, 1)
    else:
        assert "CriticalNodeFailed: worker-0 ended with FatalError (1): ValueError: no such layer" in failure(
            it
        )


def test_migration_fails_and_training_goes_on() -> None:
    """A migration whose process keeps crashing fails long before its step times out. The plan names the
    process, the number of crashes and the cause; no node is replaced."""
    it = job()
    it.submit("plan", ScalePlanSpec(replica_resource_specs={"ps": ReplicaResourceSpec(replicas=3)}))
    whys = set()
    for _ in range(20):
        for _ in it.everything():
            change = it.state.versions.change
            if change is not None and change.number:
                crash(it, "worker-1", BUDGET, version=change.number)
                crash(it, "worker-1", BUDGET + 1, version=change.number, code=3)
                assert it.state.plan is not None
                whys.add((it.state.plan.reason, it.state.plan.message))
    it.calm(5)

    assert whys == {
        (
            "SwitchFailed",
            (
                "the process of worker-1 ended 4 times while it was prepared, with code 3: "
                "ValueError: no such layer"
            ),
        )
    }
    assert it.plans["plan"].phase is ScalePlanPhase.FAILED
    assert it.state.versions.settled
    active = it.state.versions.active
    assert active is not None
    assert (active.number, active.members) == (1, (0, 1))
    assert {node.status for node in it.state.nodes.live("worker")} == {NodeStatus.RUNNING}


def test_crashes_of_another_version_or_incarnation_do_not_count() -> None:
    """A crash report for another cluster version, or from an agent that was replaced, changes nothing."""
    it = job()
    prepare_recovery(it)
    crash(it, "worker-0", 99, version=7)
    messages.record_crash_report(
        it.state,
        CrashReport(
            node=NodeRef(type="worker", id=0),
            incarnation="earlier",
            version=2,
            crashes=99,
            code=1,
            last_lines="",
        ),
    )
    it.settle()
    assert it.state.outcome is None
    chief = it.state.chief
    assert chief is not None
    assert chief.id == 0


def test_a_server_that_hangs_while_it_prepares_is_replaced() -> None:
    """If a server's agent lives but its process does not become ready, another node takes its rank after the
    time-out, and training continues."""
    it = job()
    prepare_recovery(it)
    it.now += 899
    it.settle()
    assert {(node.id, node.relaunches) for node in it.state.nodes.live("ps")} == {(1, 0), (2, 0)}
    it.now += 2
    it.settle()
    it.calm(20)

    assert it.state.versions.settled
    assert {(node.id, node.relaunches) for node in it.state.nodes.live("ps")} == {(3, 1), (4, 1)}


def test_servers_that_always_hang_end_the_job() -> None:
    """Each replacement of a server that hangs uses one of its restarts. When none is left, the job fails with
    that reason."""
    it = job()
    prepare_recovery(it)
    for _ in range(BUDGET + 1):
        assert not failure(it)
        until_prepared(it)
        it.now += 901
        it.settle()

    assert "ended with PrepareTimeout: its process was not ready for version" in failure(it)
