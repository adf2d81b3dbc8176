"""Rules about resource templates: their conditions, the effect of a retry, the owner of the created
object."""

from collections.abc import Iterator, Mapping
from typing import Any

from edl_workflows.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.argo.lint.rules import conditions
from edl_workflows.argo.lint.rules.manifests import ResourceObject, resource_object
from edl_workflows.argo.lint.workflow import Spec, Template, has_tag, mapping, names, text
from edl_workflows.schemas.structural import Path

FAILURE_ALONE = Rule(
    "failure-without-success",
    Severity.ERROR,
    "A resource template has a failureCondition and no successCondition: the step succeeds at the first "
    "look.",
    "Add a successCondition, as `status.phase = Succeeded`.",
)
SYNTAX = Rule(
    "condition-syntax",
    Severity.ERROR,
    "A successCondition or failureCondition that Kubernetes does not parse as a label selector: values have "
    "at most 63 characters and no spaces, arrays can't be searched.",
    "Compare one scalar field: `status.phase in (Succeeded,Completed)`.",
)
ABSENT_KEY = Rule(
    "absent-key",
    Severity.ERROR,
    "`!=`, `notin` and `!key` are true while the field is not there, which is so just after the object was "
    "made.",
    "Say what the field shall be: `=` or `in`.",
)
NEVER_TRUE = Rule(
    "never-true",
    Severity.ERROR,
    "A successCondition wants two values of one field. Its comma means and.",
    "Write `status.phase in (A,B)`.",
)
FAILURE_LIST = Rule(
    "failure-list",
    Severity.WARNING,
    "A failureCondition with a comma fails when any part is true; the comma of a successCondition means all.",
    "Keep one part; for values of one field use `in (A,B)`.",
)
STRATEGIC_PATCH = Rule(
    "strategic-patch",
    Severity.ERROR,
    "A custom resource is patched with the strategic strategy, which is the default and only built-in "
    "kinds have.",
    "Set mergeStrategy: merge, or json.",
)
NO_MANIFEST = Rule(
    "no-manifest",
    Severity.ERROR,
    "A resource template that makes or changes something has no manifest, or takes it from an artifact "
    "that it has not.",
    "Add manifest, or manifestFrom with an input artifact of that name.",
)
SECOND_JOB = Rule(
    "second-job",
    Severity.WARNING,
    "A resource template with retryStrategy makes an object with generateName: a retry makes a second one, "
    "also when only the waiting pod was lost and the first still runs.",
    "Use `action: apply` with a name of the workflow's own, as `train-{{workflow.uid}}`, so that a retry "
    "finds the first.",
)
SAME_NAME = Rule(
    "same-name-retry",
    Severity.WARNING,
    "A resource template with retryStrategy creates an object of a fixed name: every retry fails, the "
    "object exists.",
    "Use `action: apply` to go on with the first, or put `{{retries}}` into the name to make another.",
)
APPLY_GENERATED = Rule(
    "apply-generate-name",
    Severity.ERROR,
    "An object with generateName can't be applied, only created.",
    "Give it a name, or use `action: create`.",
)
OWNER_NAMESPACE = Rule(
    "cross-namespace-owner",
    Severity.ERROR,
    "setOwnerReference on an object of another namespace: owners work within one, so the object is deleted "
    "at once.",
    "Leave out setOwnerReference and clean up in an exit handler, or use the workflow's namespace.",
)
OWNER_ARTIFACT = Rule(
    "owner-of-artifact",
    Severity.ERROR,
    "setOwnerReference is ignored for a manifest that comes from an artifact.",
    "Put the ownerReferences into the manifest, or clean up in an exit handler.",
)
RULES = (
    FAILURE_ALONE, SYNTAX, ABSENT_KEY, NEVER_TRUE, FAILURE_LIST, STRATEGIC_PATCH, NO_MANIFEST, SECOND_JOB,
    SAME_NAME,
    APPLY_GENERATED, OWNER_NAMESPACE, OWNER_ARTIFACT,
)  # fmt: skip

_BUILT_IN = frozenset(
    [
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "apps",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "autoscaling",
        "batch",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "flowcontrol.apiserver.k8s.io",
        "internal.apiserver.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "policy",
        "rbac.authorization.k8s.io",
        "resource.k8s.io",
        "scheduling.k8s.io",
        "storage.k8s.io",
        "storagemigration.k8s.io",
    ]
)
"""Kubernetes' own API groups other than the core group. All other groups hold custom resources."""


def _resources(spec: Spec) -> Iterator[tuple[Template, Mapping[str, Any], Path]]:
    for template in spec.templates:
        if template.type == "resource":
            yield template, template.part("resource"), (*template.path, "resource")


def _conditions(spec: Spec) -> Iterator[Finding]:
    for template, body, path in _resources(spec):
        success, failure = text(body.get("successCondition")), text(body.get("failureCondition"))
        if failure and not success:
            yield FAILURE_ALONE.at((*path, "failureCondition"), f"{template} has no successCondition")
        for name, condition in (("successCondition", success), ("failureCondition", failure)):
            if condition:
                yield from _condition((*path, name), condition)


def _condition(path: Path, condition: str) -> Iterator[Finding]:
    try:
        requirements = conditions.parse(condition)
    except ValueError as error:
        yield SYNTAX.at(path, f"{condition!r}: {error}")
        return
    for one in requirements:
        if one.holds_when_absent and one.key.startswith("status"):
            yield ABSENT_KEY.at(path, f"{condition!r} is true as long as there is no {one.key}")
    if path[-1] == "successCondition" and (key := conditions.never_true(requirements)):
        yield NEVER_TRUE.at(path, f"{condition!r} wants two values of {key}")
    if path[-1] == "failureCondition" and len(requirements) > 1:
        yield FAILURE_LIST.at(path, f"{condition!r} fails when one of its {len(requirements)} parts is true")


def _manifests(spec: Spec) -> Iterator[Finding]:
    for template, body, path in _resources(spec):
        action = text(body.get("action"))
        if action in ("create", "apply", "replace", "patch"):
            source = mapping(mapping(body.get("manifestFrom")).get("artifact"))
            artifacts = names([entry for _, entry in template.inputs("artifacts")])
            if not body.get("manifest") and not source:
                yield NO_MANIFEST.at(path, f"{template} has no manifest to {action}")
            elif source and text(source.get("name")) not in artifacts:
                message = f"{template} has no input artifact {text(source.get('name'))!r}"
                yield NO_MANIFEST.at((*path, "manifestFrom", "artifact"), message)
        if one := resource_object(template):
            yield from _patch(template, one, path)
            yield from _retry(template, one, path)
            yield from _owner(spec, template, one, path)
        elif body.get("setOwnerReference") is True and body.get("manifestFrom"):
            yield OWNER_ARTIFACT.at((*path, "setOwnerReference"), f"{template} has manifestFrom")


def _patch(template: Template, one: ResourceObject, path: Path) -> Iterator[Finding]:
    body = template.part("resource")
    strategy = body.get("mergeStrategy") or "strategic"
    group = one.group
    if body.get("action") == "patch" and strategy == "strategic" and group and group not in _BUILT_IN:
        yield STRATEGIC_PATCH.at(path, f"{template} patches a {one.kind} of {group}")


def _retry(template: Template, one: ResourceObject, path: Path) -> Iterator[Finding]:
    action = text(template.part("resource").get("action"))
    at = (*path, "manifest")
    if action == "apply" and one.generated and not one.name:
        yield APPLY_GENERATED.at(at, f"{template} applies a {one.kind} with generateName")
    if not template.setting("retryStrategy") or action != "create":
        return
    if one.generated and not one.name:
        yield SECOND_JOB.at(at, f"{template} makes another {one.kind} at each retry")
    elif one.name and "retries" not in one.name and "pod.name" not in one.name:
        yield SAME_NAME.at(at, f"{template} creates {one.kind} {one.name!r} again at each retry")


def _owner(spec: Spec, template: Template, one: ResourceObject, path: Path) -> Iterator[Finding]:
    if template.part("resource").get("setOwnerReference") is not True:
        return
    known = one.namespace and spec.namespace and not has_tag(one.namespace)
    if known and one.namespace != spec.namespace:
        message = f"the {one.kind} is in {one.namespace!r}, the workflow in {spec.namespace!r}"
        yield OWNER_NAMESPACE.at((*path, "setOwnerReference"), message)


CHECKS = (_conditions, _manifests)
