"""What the training functions of workers return, and which of it is the job's result."""

import pytest

from edl_workflows.core.exceptions import NotFoundError
from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.training import ResultReport
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages, views
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes.registry import NodeStatus
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.state.stored_state import StoredState
from tests.unit.services.master.state.test_self_formed_worlds import SelfFormedJob, job_of


def reports(state: JobState, node: str, result: str) -> bool:
    """A node reports."""
    kind, _, number = node.partition("-")
    return messages.record_function_result(
        state, ResultReport(node=NodeRef(type=kind, id=int(number)), result=result)
    )


def result(state: JobState) -> object:
    """What the job's status shows."""
    return views.job_status(state, 1000.0).get("result")


@pytest.fixture
def job() -> SelfFormedJob:
    """Two workers train."""
    return job_of(2)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (["worker-0 1"], "1"),
        (["worker-1 2", "worker-0 1"], "1"),
        (["worker-0 1", "worker-1 2"], "1"),
        (["worker-1 2"], "2"),
        (["worker-0 1", "worker-0 1"], "1"),
        (["worker-0 1", "worker-0 3"], "3"),
        ([], None),
    ],
    ids=["one", "first-rank-later", "first-rank-earlier", "other-rank", "twice", "again", "none"],
)
def test_the_result_is_that_of_the_first_rank(job: SelfFormedJob, said: list[str], kept: str | None) -> None:
    """The result of the lowest rank counts, in whatever order results arrive. Repeated reports are accepted;
    after a restart the newest one counts."""
    for one in said:
        reports(job.state, *one.split())

    assert result(job.state) == kept


def test_a_parameter_server_has_no_result() -> None:
    """A parameter server runs the same program, but its result does not count. A chief's result takes
    precedence over a worker's."""
    state = JobState(JobSettings("job", "default", parse_nodes("chief=1,worker=1,ps=1")))
    for role in ("ps", "worker", "chief"):
        state.nodes.add(*state.nodes.new_nodes(role, [(0, NodeResource())], 1.0))
    said = [("ps-0", "0"), ("worker-0", "1"), ("chief-0", "2"), ("worker-0", "3")]

    assert [reports(state, *one) for one in said] == [False, True, True, False]
    assert result(state) == "2"


def test_a_restarted_master_knows_the_result(job: SelfFormedJob) -> None:
    """A new master reads the result from the stored state."""
    reports(job.state, "worker-0", '{"accuracy": 0.9}')
    state = JobState(job.settings, StoredState.from_json(job.state.to_json()))

    assert result(state) == '{"accuracy": 0.9}'


def test_a_worker_that_has_ended_or_never_was_has_none(job: SelfFormedJob) -> None:
    """A late report of a lost worker changes nothing."""
    job.state.nodes.change(job.node(0), status=NodeStatus.FAILED)
    assert not reports(job.state, "worker-0", "1")
    with pytest.raises(NotFoundError):
        reports(job.state, "worker-77", "1")
    assert result(job.state) is None
