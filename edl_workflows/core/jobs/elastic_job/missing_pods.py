"""Why pods that an ElasticJob's master asked for do not exist, as reported by the auto plans that could not
make them. Pure.
"""

from collections.abc import Sequence

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import Event, Manifest
from edl_workflows.core.jobs.elastic_job.facts import ElasticJobFacts
from edl_workflows.core.jobs.elastic_job.model import ElasticJobPhase
from edl_workflows.core.jobs.elastic_job.status import replica_statuses
from edl_workflows.core.jobs.refused_pods import own_paths
from edl_workflows.core.jobs.scale_plan.model import NAME_CONFLICT, POD_REFUSED, ScalePlan
from edl_workflows.core.jobs.status import PhaseVerdict
from edl_workflows.core.kubernetes import names, pod_state
from edl_workflows.core.protocol.reported_text import inert_text

_NOT_MADE = frozenset({NAME_CONFLICT, POD_REFUSED})


def why_pods_are_missing(facts: ElasticJobFacts) -> str:
    """Why pods that the master asked for can't be made; "" if all can."""
    plan = _find_plan(facts)
    return plan.status.message if plan else ""


def find_hopeless_role(facts: ElasticJobFacts) -> str:
    """Why the job can't go on, since the API server will never accept the pods of a role, and the role has
    none; "" if it can. A job that has some of the role's pods goes on with these, and one that is suspended
    needs none."""
    plan = None if facts.job.spec.suspend else _find_plan(facts)
    if plan is None or not plan.finished or plan.status.reason != POD_REFUSED:
        return ""
    present = {
        manifests.get_label(pod, names.REPLICA_TYPE_LABEL)
        for pod in facts.nodes
        if pod_state.pod_phase(pod) != "Failed"
    }
    hopeless = sorted({str(pod.type) for pod in plan.spec.create_pods} - present)
    if not hopeless:
        return ""
    spec = {"spec": facts.job.spec.to_dict()}
    return own_paths(spec, hopeless[0], plan.status.message)


def missing_pods_event(facts: ElasticJobFacts, outcome: PhaseVerdict) -> tuple[Event, ...]:
    """An Event when the job's message begins to say that a pod can't be made.

    API servers may word the same refusal differently each time, so a new message about the same pod gives no
    Event.
    """
    plan = _find_plan(facts)
    if plan is None or outcome.message != inert_text(plan.status.message):
        return ()
    if _subject(outcome.message) == _subject(facts.job.status.message):
        return ()
    return (Event("Warning", plan.status.reason, outcome.message),)


def _find_plan(facts: ElasticJobFacts) -> ScalePlan | None:
    """The auto plan that waits because its pods are refused (as by a quota); else the newest one that failed
    to make a pod that the job still needs."""
    asked = [plan for plan in facts.plans if plan.auto]
    waiting = (p for p in asked if not p.finished and p.status.reason == POD_REFUSED)
    ended = [p for p in reversed(asked) if p.finished and _is_of_master(p, facts.master)]
    return next(waiting, None) or _find_failed(facts, ended)


def _is_of_master(plan: ScalePlan, master: Manifest | None) -> bool:
    """Whether the newest master made the plan. It asks again for what an earlier one did not get, perhaps
    with a corrected template."""
    created = plan.metadata.creation_timestamp
    began = manifests.parse_time(master["metadata"].get("creationTimestamp")) if master else None
    return created is not None and began is not None and created >= began


def _find_failed(facts: ElasticJobFacts, newest_first: Sequence[ScalePlan]) -> ScalePlan | None:
    """After a plan has failed, the master asks for the same pods with another plan. So only the newest plan
    for a pod counts, and only while the pod's role has too few pods."""
    if all(plan.status.reason not in _NOT_MADE for plan in newest_first):
        return None
    counts = replica_statuses(facts, ElasticJobPhase.RUNNING)
    short = {role for role, count in counts.items() if count.initial}
    covered_pods: set[str] = set()
    for plan in newest_first:
        pods = {pod.name for pod in plan.spec.create_pods if pod.type in short} - covered_pods
        if pods and plan.status.reason in _NOT_MADE:
            return plan
        covered_pods |= pods
    return None


def _subject(message: str) -> str:
    return message.partition(": ")[0]
