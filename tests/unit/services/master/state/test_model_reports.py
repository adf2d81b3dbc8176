"""A plan is verified by what the model says before and after: the same, or the old servers take over
again.
"""

from collections.abc import Callable

import pytest

from edl_workflows.core.exceptions import ConflictError
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlanPhase, ScalePlanSpec
from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.training import Evaluation, ModelReport
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import model_messages, views
from edl_workflows.services.master.state.rollouts.rollout import Rollout
from edl_workflows.services.master.state.settings import JobSettings
from tests.unit.services.master.simulated_job import SimulatedJob

Says = Callable[[TrainingCluster], Evaluation | None]


def says_by_servers(*values: Evaluation) -> Says:
    """A model whose meaning depends on the number of servers: one value for each."""
    return lambda cluster: values[len(cluster.ps) - 1]


def changed(says: Says, spec: ScalePlanSpec | None = None) -> tuple[SimulatedJob, Rollout]:
    """A job on one server that got a second, and its plan at its end."""
    job = SimulatedJob(JobSettings("job", "default", parse_nodes("ps=1,worker=2")), 10_000)
    job.says = says
    job.calm(12)
    more = ScalePlanSpec(replica_resource_specs={"ps": ReplicaResourceSpec(replicas=2)})
    job.submit("more", spec or more)
    return job, until_ended(job)


def until_ended(job: SimulatedJob) -> Rollout:
    """The plan at its end."""
    for _ in range(60):
        job.calm(1)
        run = job.plans["more"].run
        if run is not None and run.phase.final:
            return run
    pytest.fail(f"the plan does not end: {job.plans['more'].run}")


@pytest.mark.parametrize(
    ("before", "after"), [(0.55, 0.55), (0.55, 0.5500001), (0.0, 1e-9)], ids=["equal", "rounded", "zero"]
)
def test_same_model_is_said_to_be_the_same(before: float, after: float) -> None:
    """The plan succeeds, and its status has both values. A difference by rounding counts as equal."""
    _, plan = changed(says_by_servers(Evaluation(value=before), Evaluation(value=after)))
    assert plan.phase is ScalePlanPhase.SUCCEEDED
    verification = views.plan_status(plan)["verification"]
    assert verification == {"result": "Same", "before": before, "after": after, "message": ""}


@pytest.mark.parametrize(
    ("after", "message"),
    [
        (Evaluation(value=0.823), "evaluated to 0.551 before the switch, and to 0.823 after it"),
        (Evaluation(value=0.5515), "evaluated to 0.551 before the switch, and to 0.5515 after it"),
        (
            Evaluation(problem="the model says nan"),
            "and could not be evaluated after it (the model says nan)",
        ),
    ],
    ids=["another loss", "a little different", "no number"],
)
def test_another_model_is_rolled_back(after: Evaluation, message: str) -> None:
    """The plan fails with both values, the different model is not trained, and the old servers continue from
    the switch checkpoint."""
    job, plan = changed(says_by_servers(Evaluation(value=0.551), after))
    assert (plan.phase, plan.reason) == (ScalePlanPhase.FAILED, "VerificationFailed")
    assert message in plan.message
    assert "rolled back" in plan.message
    assert views.plan_status(plan)["verification"]["result"] == "Different"
    assert 2 not in job.models, "nobody loaded the model of the failed version"

    job.calm(20)
    active = job.published.directive.active
    assert active is not None
    assert active.version > 2
    assert [member.id for member in active.ps] == [0]
    assert job.state.versions.settled
    assert job.state.counts["ps"] == 1
    trained = job.steps[active.version]
    assert plan.checkpoint is not None
    assert trained > plan.checkpoint.step, "it trains"
    job.calm(5)
    assert job.steps[active.version] > trained


@pytest.mark.parametrize(
    ("says", "message"),
    [
        (lambda _: None, "the program gives nothing to compare"),
        (lambda _: Evaluation(problem="the loss is random"), "the loss is random"),
    ],
    ids=["no evaluation", "a problem"],
)
def test_what_could_not_be_compared_is_not_claimed(says: Says, message: str) -> None:
    """If a program gives nothing to compare, the plan succeeds, and its status says that nothing was
    compared."""
    _, plan = changed(says)
    assert plan.phase is ScalePlanPhase.SUCCEEDED
    verification = views.plan_status(plan)["verification"]
    assert (verification["result"], verification["message"]) == ("NotCompared", message)


def test_plan_without_a_switch_says_nothing_of_verification() -> None:
    """A plan for workers alone has no verification in its status."""
    spec = ScalePlanSpec(replica_resource_specs={"worker": ReplicaResourceSpec(replicas=3)})
    _, plan = changed(says_by_servers(Evaluation(value=1.0), Evaluation(value=2.0)), spec)
    assert plan.phase is ScalePlanPhase.SUCCEEDED
    assert "verification" not in {key for key, value in views.plan_status(plan).items() if value}


def test_refused_model_stays_refused() -> None:
    """If the master dies after its verdict and the message is repeated, the next master gives the same
    answer."""
    job = SimulatedJob(JobSettings("job", "default", parse_nodes("ps=1,worker=1")), 10_000)
    job.says = says_by_servers(Evaluation(value=0.5), Evaluation(value=0.9))
    job.calm(12)
    job.submit("more", ScalePlanSpec(replica_resource_specs={"ps": ReplicaResourceSpec(replicas=2)}))
    events = (None for _ in range(60) for _ in job.everything())
    while job.state.plan is None or not job.state.plan.phase.final:
        next(events)
    assert job.state.plan.phase is ScalePlanPhase.FAILED
    job.commit()
    active = job.state.versions.active
    assert active is not None
    assert active.number == 2, "the old servers are not active again yet"
    report = ModelReport(node=NodeRef(type="worker", id=0), version=2, evaluation=Evaluation(value=0.9))
    for _ in ("the same master", "another master"):
        assert model_messages.record_model_report(job.state, report).refused
        job.crash()


def test_only_the_chief_of_the_active_version_is_heard() -> None:
    """A report from another worker, or from a process of another version, is rejected."""
    job = SimulatedJob(JobSettings("job", "default", parse_nodes("ps=1,worker=2")))
    job.calm(12)
    for node, version in ((1, 1), (0, 7)):
        ref = NodeRef(type="worker", id=node)
        report = ModelReport(node=ref, version=version, evaluation=Evaluation(value=0.9))
        with pytest.raises(ConflictError, match="is not the"):
            model_messages.record_model_report(job.state, report)


LOSS = Evaluation(value=0.5, fingerprints={"table": "a1", "table/Adagrad": "b1"})
DROPOUT = Evaluation(problem="it is random", fingerprints=LOSS.fingerprints)


@pytest.mark.parametrize("before", [LOSS, DROPOUT], ids=["loss", "dropout"])
@pytest.mark.parametrize(
    ("after", "message"),
    [
        (
            {"table": "a1", "table/Adagrad": "b2"},
            "variables differ from those before the switch: table/Adagrad;",
        ),
        ({"table": "a1"}, "variables differ from those before the switch: table/Adagrad;"),
        ({}, "the variables could not be read after the switch, to compare them;"),
    ],
)
def test_another_variable_is_another_model(before: Evaluation, after: dict[str, str], message: str) -> None:
    """A row or a slot of the optimizer that differs is found, although the loss of the last batch is the
    same, or is random: the plan is rolled back, and names the variable."""
    changed_after = before.model_copy(update={"fingerprints": after})
    _, plan = changed(says_by_servers(before, changed_after))
    assert (plan.phase, plan.reason) == (ScalePlanPhase.FAILED, "VerificationFailed")
    assert plan.message.startswith(message)
    assert views.plan_status(plan)["verification"]["result"] == "Different"


def test_variables_are_compared_if_the_loss_is_random() -> None:
    """With dropout, the same variables count as the same model, and the status says what was compared."""
    _, plan = changed(says_by_servers(DROPOUT, DROPOUT))
    assert plan.phase is ScalePlanPhase.SUCCEEDED
    verification = views.plan_status(plan)["verification"]
    assert verification["result"] == "Same"
    assert verification["message"] == "rows of 2 variables were compared, the loss was not: it is random"
