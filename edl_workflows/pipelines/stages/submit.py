"""Submit a job: create it under a name derived from the task, or adopt the one that an earlier attempt
created."""

import copy
from typing import Any

from edl_workflows.core.exceptions import InvalidError, ManifestError, Problem
from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.manifests import travelling
from edl_workflows.pipelines.manifests.manifest_diff import describe_differences
from edl_workflows.pipelines.stages.description import StageRequest, StageSpec
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.goals import Handle, JobGoal
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube.connect import Cluster


class SubmitRequest(StageRequest):
    """A job to run.

    Attributes:
        manifest: the custom resource. Without ``metadata.name`` it gets a name derived from the task and the
            run.
        namespace: for a manifest without a namespace; "" for the connection's.
        hint: readable part of a derived name.
        program: a program that travels with an ElasticJob, in a ConfigMap that the job owns.
    """

    manifest: dict[str, Any]
    namespace: str = ""
    hint: str = "job"
    program: TrainingProgram | None = None


def begin_submit(cluster: Cluster, request: SubmitRequest, identity: StageIdentity) -> Handle:
    """Create or adopt the job.

    Raises:
        ManifestError: the manifest is invalid; nothing was created.
        ConflictError: a job of that name exists and belongs to another owner.
    """
    manifest = complete_manifest(request, identity, cluster.namespace)
    metadata = manifest["metadata"]
    target = ownership.ObjectRef(manifest["kind"], metadata["namespace"], metadata["name"])
    job, is_adopted = ownership.create_or_adopt(cluster, target, lambda: manifest, identity)
    for line in describe_differences(manifest, job):
        identity.notify(f"{target} differs from the manifest of this attempt: {line}")
    if request.program is not None:
        travelling.ensure_program(cluster, request.program, job)
    goal = JobGoal(phases=(JobPhase.SUCCEEDED,))
    return Handle.of(target.kind, job, goal, identity, is_adopted=is_adopted)


def complete_manifest(request: SubmitRequest, identity: StageIdentity, namespace: str) -> dict[str, Any]:
    """The job's manifest as it will be created, without the owner annotations.

    Args:
        request: with the manifest as the user wrote it.
        identity: derives the name of a job without a name.
        namespace: used if neither the manifest nor the request names one.

    Raises:
        ManifestError: the manifest is invalid.
        InvalidError: it is not the manifest of a job.
    """
    manifest = _placed(request, identity, namespace)
    kind = kinds.kind_of(str(manifest.get("kind", "")))
    if kind.view is None:
        raise InvalidError(f"a {kind.name} is not a job; submit takes the manifest of a job")
    kind.model.parse(manifest)
    if request.program is None:
        return manifest
    if kind.name != ELASTIC_JOB:
        raise InvalidError(f"a program can travel with an {ELASTIC_JOB} only, not with a {kind.name}")
    return request.program.attach(manifest)


def _placed(request: SubmitRequest, identity: StageIdentity, default: str) -> dict[str, Any]:
    manifest = copy.deepcopy(request.manifest)
    metadata = manifest.setdefault("metadata", {})
    if not isinstance(metadata, dict):
        raise ManifestError("the job's manifest", [Problem("metadata", "must be a map")])
    namespace = metadata.get("namespace") or ""
    if namespace and request.namespace and namespace != request.namespace:
        message = f"is {namespace!r}, but the stage's namespace is {request.namespace!r}; keep one of the two"
        raise ManifestError("the job's manifest", [Problem("metadata.namespace", message)])
    metadata["namespace"] = namespace or request.namespace or default
    # Not the server's generateName: a retry would get another name.
    hint = metadata.pop("generateName", None) or request.hint
    metadata["name"] = (
        identity.existing_name or metadata.get("name") or identity.name(str(hint), names.MAX_JOB_NAME)
    )
    return manifest


SUBMIT = StageSpec("submit", "Create a job from its manifest.", SubmitRequest, begin_submit)
