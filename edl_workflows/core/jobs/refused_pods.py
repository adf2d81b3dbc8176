"""The end of a job whose pods the API server will never accept. Pure.

It decodes and validates a pod only when the pod is created, long after the job was accepted, and nobody edits
pods.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import Actions, Event, Manifest, Observed, merge_patch
from edl_workflows.core.protocol.reported_text import inert_text

POD_REFUSED = "PodRefused"
_MAX_MESSAGE = 4096
_POD_PATH = re.compile(r"(?<![\w.\-/])(?:[A-Z]\w+\.)?spec\.(?=\w)")
"""The beginning of a field's path in the API server's words, which may name a type of its own before it."""


def fail_refused(
    job: Manifest, failed: str, role_label: str, observed: Observed, actions: Actions
) -> Actions | None:
    """The decision that ends a job because one of its pods is invalid; None if none is.

    The next decision, about the ended job, removes what is left of it.

    Args:
        job: the job as it is stored.
        failed: the phase of a failed job, as its kind spells it.
        role_label: label of the pods with their role.
        observed: what is observed of the job.
        actions: the decision of its kind.
    """
    invalid = {
        refusal.name: refusal for refusal in observed.refused if refusal.kind == "Pod" and refusal.invalid
    }
    for pod in actions.create:
        refusal = invalid.get(manifests.name_of(pod)) if pod["kind"] == "Pod" else None
        if refusal is not None:
            words = own_paths(job, manifests.get_label(pod, role_label), refusal.message)
            message = inert_text(
                f"the API server will never accept pod {refusal.name}: {words}"[:_MAX_MESSAGE]
            )
            desired = {"phase": failed, "reason": POD_REFUSED, "message": message}
            status = merge_patch(job.get("status") or {}, desired)
            return Actions(status=status, events=(Event("Warning", POD_REFUSED, message),))
    return None


def own_paths(job: Manifest, role: str, message: str) -> str:
    """The message with the paths of a pod's fields as its user knows them: in the job's template of the
    role."""
    templates = list(_templates(job.get("spec"), ("spec",)))
    of_role = [path for path, names in templates if role.lower() in names]
    paths = of_role if len(of_role) == 1 else [path for path, _ in templates]
    return _POD_PATH.sub(f"{paths[0]}.spec.", message) if len(paths) == 1 else message


def _templates(value: Any, path: tuple[str, ...]) -> Iterator[tuple[str, set[str]]]:
    """The path of each pod template in a job's spec, with the names by which its role may be known."""
    if isinstance(value, list):
        for index, part in enumerate(value):
            yield from _templates(part, (*path[:-1], f"{path[-1]}[{index}]"))
    elif isinstance(value, Mapping):
        if isinstance(value.get("template"), Mapping):
            named = {str(value.get(key, "")).lower() for key in ("name", "type")}
            yield ".".join((*path, "template")), named | {path[-1].lower()}
            return
        for key, part in value.items():
            yield from _templates(part, (*path, str(key)))
