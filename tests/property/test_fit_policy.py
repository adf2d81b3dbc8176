"""What first-fit guarantees in addition to the contract of policies (`tests.property.test_policies`)."""

from dataclasses import replace

from hypothesis import given

from edl_workflows.core.scaling.first_fit import FirstFitPolicy
from edl_workflows.core.scaling.policy import NodeInfo
from tests.property.test_policies import PolicyQuestion, pinned, questions

POLICY = FirstFitPolicy()


@given(questions())
def test_no_job_waits_behind_a_less_important_one(question: PolicyQuestion) -> None:
    """A job without replicas would find no room for its minimum even if less important jobs and all replicas
    beyond other jobs' minima were gone."""
    answer = question.ask(POLICY)
    for key, places in answer.items():
        job = question.jobs[key]
        if places:
            continue
        free = {
            name: NodeInfo(
                name,
                {
                    resource: amount
                    - sum(
                        other.demand(rank).get(resource, 0.0)
                        for other in question.jobs.values()
                        if other.priority >= job.priority or pinned(question, other.key)
                        for rank, place in enumerate(answer[other.key])
                        if place == name and (rank < other.min_replicas or pinned(question, other.key))
                    )
                    for resource, amount in node.free.items()
                },
                node.schedulable,
            )
            for name, node in question.nodes.items()
        }
        assert POLICY.allocate(replace(job, max_replicas=job.min_replicas), free) == []
