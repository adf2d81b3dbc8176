"""How many records a job has in all, for its share and its remaining time."""

import pytest

from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages, views
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob
from tests.unit.services.master.simulated_job import SimulatedJob


@pytest.mark.parametrize(("total", "shown"), [(1000, 1000), (0, 0)], ids=["an end", "endless"])
def test_members_of_a_collective_job_know_how_much_is_left(total: int, shown: int) -> None:
    """The status has the records of all epochs as soon as a member reports a step, and stages then show the
    share that is done and the remaining time. A report without them, as of a second callback, does not hide
    them.
    """
    settings = JobSettings(
        "job",
        "default",
        parse_nodes("worker=2"),
        collective=True,
        rendezvous=RendezvousLimits(max_nodes=2, waiting_timeout=5.0),
    )
    job = SimulatedCollectiveJob(settings, 0)
    job.calm(8)
    active = job.state.versions.active
    assert active is not None
    report = StepReport(
        node=NodeRef(type="worker", id=active.members[0]),
        version=active.number,
        step=job.state.steps.step + 1,
        records=250,
        records_total=total,
        time=job.now,
        first_step_time=job.now,
    )
    messages.record_step_report(job.state, report)
    messages.record_step_report(job.state, report.model_copy(update={"records_total": 0}))
    assert views.job_status(job.state, job.now)["progress"].get("recordsTotal", 0) == shown


def test_records_of_data_sets_are_counted_by_the_master() -> None:
    """A job that takes its data from the master needs no report."""
    job = SimulatedJob(JobSettings("job", "default", parse_nodes("ps=1,worker=1")), 40)
    job.calm(4)
    assert views.job_status(job.state, job.now)["progress"]["recordsTotal"] == 40
