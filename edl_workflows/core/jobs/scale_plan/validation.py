"""Problems of a ScalePlan that can be seen only with its job. Pure; paths are those of the plan."""

from collections.abc import Iterator, Sequence

from edl_workflows.core.exceptions import Problem
from edl_workflows.core.jobs.elastic_job.model import ElasticJob, ElasticJobPhase
from edl_workflows.core.jobs.elastic_job.pods import role_spec
from edl_workflows.core.jobs.scale_plan.model import PodMeta, ScalePlan
from edl_workflows.core.kubernetes import names


def find_plan_problems(plan: ScalePlan, job: ElasticJob, pods: Sequence[str]) -> list[Problem]:
    """Problems of a plan that has not begun.

    Args:
        plan: manual or auto.
        job: the job that it is for.
        pods: names of the job's present training pods. While the job runs, a manual plan must name no others.
    """
    return [*_roles(plan, job), *_created(plan, job), *_named(plan, job, pods)]


def _roles(plan: ScalePlan, job: ElasticJob) -> Iterator[Problem]:
    for role in plan.spec.replica_resource_specs:
        if role_spec(job, role) is None:
            yield Problem(f"spec.replicaResourceSpecs.{role}", _no_role(job, role))


def _created(plan: ScalePlan, job: ElasticJob) -> Iterator[Problem]:
    for index, pod in enumerate(plan.spec.create_pods):
        path = f"spec.createPods.{index}"
        if pod.type is None:
            yield Problem(f"{path}.type", "required field is missing")
        elif role_spec(job, pod.type) is None:
            yield Problem(f"{path}.type", _no_role(job, pod.type))
        elif pod.name != (right := names.node_name(job.metadata.name, pod.type, pod.id)):
            yield Problem(f"{path}.name", f"{pod.name!r} must be {right!r} for this type and id")


def _named(plan: ScalePlan, job: ElasticJob, pods: Sequence[str]) -> Iterator[Problem]:
    lists: dict[str, list[PodMeta]] = {
        "removePods": plan.spec.remove_pods,
        "migratePods": plan.spec.migrate_pods,
    }
    running = job.status.phase in (ElasticJobPhase.RUNNING, ElasticJobPhase.SCALING)
    for field, metas in lists.items():
        for index, pod in enumerate(metas):
            path = f"spec.{field}.{index}.name"
            if names.parse_node_name(job.metadata.name, pod.name) is None:
                scheme = names.node_name(job.metadata.name, "<type>", 0).replace("0", "<id>")
                yield Problem(path, f"{pod.name!r} is no pod of the job; they are called {scheme}")
            elif running and not plan.auto and pod.name not in pods:
                yield Problem(path, f"the job has no pod {pod.name!r}; it has {', '.join(pods) or 'none'}")


def _no_role(job: ElasticJob, role: str) -> str:
    roles = ", ".join(sorted(set(job.spec.replica_specs) - {names.MASTER_TYPE}))
    return f"ElasticJob {job.key} has no role {role!r}; it has {roles}"
