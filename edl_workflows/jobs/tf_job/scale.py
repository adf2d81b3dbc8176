"""Other replicas of a TFJob, or replicas of another size: an edit of its spec, which the controller carries
out.
"""

import copy
from collections.abc import Mapping
from typing import Any

from edl_workflows.exceptions import ManifestError, Problem
from edl_workflows.jobs.actions import RoleChange, SpecEdit
from edl_workflows.jobs.tf_job.model import ReplicaSpec, TFJob
from edl_workflows.jobs.tf_job.types import container_of, replica_type


def scale(job: TFJob, wanted: Mapping[str, RoleChange]) -> SpecEdit:
    """These replicas by type, in any of the type's spellings; other types stay as they are.

    Raises:
        ManifestError: the job has no such type.
    """
    specs = job.spec.tf_replica_specs
    keys = {replica_type(key).slug: key for key in specs}
    chosen = {role: keys.get("evaluator" if role.lower() == "eval" else role.lower()) for role in wanted}
    if unknown := [role for role, key in chosen.items() if key is None]:
        has = ", ".join(sorted(specs))
        problems = [
            Problem(f"replicas.{role}", f"the job has no such type; it has {has}") for role in unknown
        ]
        raise ManifestError(f"change of TFJob {job.key}", problems)
    changes = {key: wanted[role] for role, key in chosen.items() if key is not None}
    patch = {key: _change(specs[key], change) for key, change in changes.items()}
    counts = {key: spec.replicas for key, spec in specs.items()}
    counts |= {key: change.replicas for key, change in changes.items() if change.replicas is not None}
    return SpecEdit({"tfReplicaSpecs": patch}, sum(counts.values()))


def _change(spec: ReplicaSpec, wanted: RoleChange) -> dict[str, Any]:
    patch: dict[str, Any] = {} if wanted.replicas is None else {"replicas": wanted.replicas}
    if wanted.resources:
        template = copy.deepcopy(spec.template)
        container = container_of(template)
        own = container.get("resources") or {}
        container["resources"] = own | {
            part: (own.get(part) or {}) | dict(wanted.resources) for part in ("requests", "limits")
        }
        patch["template"] = {"spec": {"containers": template["spec"]["containers"]}}
    return patch
