"""Who sizes an ElasticJob, how far, and what the autoscaler's plans are called."""

from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs import autoscaling
from edl_workflows.core.jobs.elastic_job import scaling
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.scale_plan import manual_plan
from edl_workflows.core.jobs.scale_plan.model import ScalePlan


def job(annotation: str = "", status: dict[str, Any] | None = None, **spec: Any) -> ElasticJob:
    """A parameter server of two cores, and workers of one; in mode manual."""

    def role(replicas: int, cpu: str, **more: Any) -> dict[str, Any]:
        container = {"name": "main", "image": "train:1", "resources": {"requests": {"cpu": cpu}}}
        pod = {"containers": [container], "nodeSelector": {"pool": "train"}}
        return {"replicas": replicas, "template": {"spec": pod}, **more}

    worker: dict[str, Any] = {"replicas": 1, **spec.pop("worker", {})}
    roles = {"ps": role(1, "2"), "worker": role(cpu="1", **worker)}
    if spec.get("distributionStrategy") in ("Local", "AllreduceStrategy"):
        del roles["ps"]
    annotations = {autoscaling.ANNOTATION: annotation} if annotation else {}
    return ElasticJob.parse({
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "ctr", "namespace": "train", "uid": "u", "annotations": annotations},
        "spec": {"optimizeMode": "manual", "replicaSpecs": roles, **spec},
        "status": status or {},
    })  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "whose"),
    [
        ({}, (1, 98)),  # a hundred cores by default, less the server's
        ({"resourceLimits": {"cpu": "7"}}, (1, 5)),
        ({"resourceLimits": {"cpu": "2"}}, (1, 0)),
        ({"optimizeMode": "single-job"}, None),
        ({"optimizeMode": "cluster"}, None),
        ({"worker": {"autoScale": False}}, None),
        ({"distributionStrategy": "Local"}, None),
        (
            {"distributionStrategy": "AllreduceStrategy", "rendezvous": {"minNodes": 2, "maxNodes": 6}},
            (2, 6),
        ),
        ({"distributionStrategy": "AllreduceStrategy", "worker": {"replicas": 3}}, (1, 3)),
    ],
    ids=str,
)
def test_what_the_cluster_may_change(spec: dict[str, Any], whose: tuple[int, int] | None) -> None:
    """The autoscaler may change the workers of a job in mode manual, within the job's limits. It never
    changes a job whose master plans or a role that forbids it."""
    found = scaling.elastic_role(job(**spec))

    assert (None if found is None else (found.minimum, found.maximum)) == whose
    if found is not None:
        assert (found.role, found.requests, found.bounded) == ("worker", {"cpu": 1.0}, False)
        assert found.placement["nodeSelector"] == {"pool": "train"}


@pytest.mark.parametrize(
    ("annotation", "bounds"),
    [("", None), ("false", None), ("2-8", (2, 8)), ("2-900", (2, 98))],
)
def test_the_annotation_must_say_how_far(annotation: str, bounds: tuple[int, int] | None) -> None:
    """Without bounds in the annotation, the autoscaler does not change the job."""
    made_of = job(annotation)
    elastic = scaling.elastic_role(made_of)
    assert elastic is not None

    found = autoscaling.permitted_bounds(made_of, elastic)

    assert (None if found is None else (found.minimum, found.maximum)) == bounds


def test_true_is_not_enough() -> None:
    """The annotation ``true`` is an error that says to give bounds instead."""
    told = job("true")
    elastic = scaling.elastic_role(told)
    assert elastic is not None

    with pytest.raises(ManifestError, match='say some, such as "2-8"'):
        autoscaling.permitted_bounds(told, elastic)


def test_what_holds_stands_in_the_status() -> None:
    """Plans do not edit the spec, which keeps the initial numbers; the status has the current ones."""
    grown = job(status={"replicaStatuses": {"worker": {"desired": 4}, "dlrover-master": {"desired": 1}}})

    assert scaling.count_desired_nodes(grown) == {"ps": 1, "worker": 4}
    elastic = scaling.elastic_role(grown)
    assert elastic is not None
    assert elastic.replicas == 4


def test_plans_are_numbered_by_those_that_are_there() -> None:
    """The next number follows from the existing autoscaling plans of the job only, so that two callers that
    see the same plans choose the same name."""
    taken = ["ctr-autoscale-2", "ctr-autoscale-10", "ctr-spec-77", "ctr-autoscale-x", "other-autoscale-99"]

    assert manual_plan.next_autoscale_name("ctr", []) == "ctr-autoscale-1"
    assert manual_plan.next_autoscale_name("ctr", taken) == "ctr-autoscale-11"


def test_a_plan_is_the_jobs_and_goes_with_it() -> None:
    """A plan belongs to the job, is in its namespace and is manual. The job owns it, and the plan does not
    block the job's deletion."""
    wanted = {"replicaResourceSpecs": {"worker": {"replicas": 3}}, "reason": "there is room"}

    plan = ScalePlan.parse(manual_plan.manual_plan(job(), "ctr-autoscale-1", wanted))

    assert (plan.job, plan.auto, plan.metadata.namespace) == ("ctr", False, "train")
    (owner,) = plan.metadata.owner_references
    assert (owner.uid, bool(owner.block_owner_deletion)) == ("u", False)
    assert plan.spec.reason == "there is room"
