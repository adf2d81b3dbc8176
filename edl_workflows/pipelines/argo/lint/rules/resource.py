"""Rules about resource templates: their conditions, the effect of a retry, the owner of the created
object."""

from collections.abc import Iterator, Mapping
from typing import Any

from edl_workflows.core.schemas.structural import Path
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.pipelines.argo.lint.rules import conditions
from edl_workflows.pipelines.argo.lint.rules.manifests import ResourceObject, resource_object
from edl_workflows.pipelines.argo.lint.workflow import (
    Spec,
    Template,
    as_mapping,
    as_text,
    entry_names,
    has_tag,
)

FAILURE_ALONE = Rule(
    "failure-without-success",
    Severity.ERROR,
    "A resource template has a failureCondition but no successCondition, so the step succeeds at the "
    "first check.",
    "Add a successCondition, such as `status.phase = Succeeded`.",
)
SYNTAX = Rule(
    "condition-syntax",
    Severity.ERROR,
    "A successCondition or failureCondition that Kubernetes can't parse as a label selector: values "
    "have at most 63 characters and no spaces, and arrays can't be searched.",
    "Compare one scalar field: `status.phase in (Succeeded,Completed)`.",
)
ABSENT_KEY = Rule(
    "absent-key",
    Severity.ERROR,
    "`!=`, `notin` and `!key` are true while the field does not exist, which is the case just after the "
    "object is created.",
    "State with `=` or `in` which value the field must have.",
)
NEVER_TRUE = Rule(
    "never-true",
    Severity.ERROR,
    "A successCondition requires two values of one field: its comma means *and*.",
    "Write `status.phase in (A,B)`.",
)
FAILURE_LIST = Rule(
    "failure-list",
    Severity.WARNING,
    "A failureCondition with a comma is true when any of its parts is true. In a successCondition, a "
    "comma means *and*.",
    "Keep one part. For several values of one field, use `in (A,B)`.",
)
STRATEGIC_PATCH = Rule(
    "strategic-patch",
    Severity.ERROR,
    "A custom resource is patched with the strategic strategy. It is the default, but only built-in "
    "kinds support it.",
    "Set mergeStrategy to merge or json.",
)
NO_MANIFEST = Rule(
    "no-manifest",
    Severity.ERROR,
    "A resource template that creates or changes an object has no manifest, or takes it from an input "
    "artifact that the template does not have.",
    "Add manifest, or manifestFrom with an input artifact of that name.",
)
SECOND_JOB = Rule(
    "second-job",
    Severity.WARNING,
    "A resource template with retryStrategy creates an object with generateName. A retry creates a "
    "second object, even if only the waiting pod was lost and the first object's job still runs.",
    "Use `action: apply` with a name that is unique to the workflow, such as `train-{{workflow.uid}}`, "
    "so that a retry finds the first object.",
)
SAME_NAME = Rule(
    "same-name-retry",
    Severity.WARNING,
    "A resource template with retryStrategy creates an object with a fixed name, so every retry fails "
    "because the object exists.",
    "Use `action: apply` to continue with the first object, or put `{{retries}}` into the name to "
    "create another one.",
)
APPLY_GENERATED = Rule(
    "apply-generate-name",
    Severity.ERROR,
    "An object with generateName can be created, but not applied.",
    "Give it a name, or use `action: create`.",
)
OWNER_NAMESPACE = Rule(
    "cross-namespace-owner",
    Severity.ERROR,
    "setOwnerReference is set for an object in another namespace. Owners only work within a namespace, "
    "so the object is deleted immediately.",
    "Remove setOwnerReference and clean up in an exit handler, or use the workflow's namespace.",
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
        success, failure = as_text(body.get("successCondition")), as_text(body.get("failureCondition"))
        if failure and not success:
            yield FAILURE_ALONE.at((*path, "failureCondition"), f"{template} has no successCondition")
        for name, condition in (("successCondition", success), ("failureCondition", failure)):
            if condition:
                yield from _condition((*path, name), condition)


def _condition(path: Path, condition: str) -> Iterator[Finding]:
    try:
        requirements = conditions.parse_condition(condition)
    except ValueError as error:
        yield SYNTAX.at(path, f"{condition!r}: {error}")
        return
    for requirement in requirements:
        if requirement.holds_when_absent and requirement.key.startswith("status"):
            yield ABSENT_KEY.at(path, f"{condition!r} is true as long as {requirement.key} does not exist")
    if path[-1] == "successCondition" and (key := conditions.never_true(requirements)):
        yield NEVER_TRUE.at(path, f"{condition!r} requires two values of {key}")
    if path[-1] == "failureCondition" and len(requirements) > 1:
        yield FAILURE_LIST.at(
            path, f"{condition!r} is true when one of its {len(requirements)} parts is true"
        )


def _manifests(spec: Spec) -> Iterator[Finding]:
    for template, body, path in _resources(spec):
        action = as_text(body.get("action"))
        if action in ("create", "apply", "replace", "patch"):
            source = as_mapping(as_mapping(body.get("manifestFrom")).get("artifact"))
            artifacts = entry_names([entry for _, entry in template.inputs("artifacts")])
            if not body.get("manifest") and not source:
                yield NO_MANIFEST.at(path, f"{template} has no manifest to {action}")
            elif source and as_text(source.get("name")) not in artifacts:
                message = f"{template} has no input artifact {as_text(source.get('name'))!r}"
                yield NO_MANIFEST.at((*path, "manifestFrom", "artifact"), message)
        if resource := resource_object(template):
            yield from _patch(template, resource, path)
            yield from _retry(template, resource, path)
            yield from _owner(spec, template, resource, path)
        elif body.get("setOwnerReference") is True and body.get("manifestFrom"):
            yield OWNER_ARTIFACT.at((*path, "setOwnerReference"), f"{template} has manifestFrom")


def _patch(template: Template, resource: ResourceObject, path: Path) -> Iterator[Finding]:
    body = template.part("resource")
    strategy = body.get("mergeStrategy") or "strategic"
    group = resource.group
    if body.get("action") == "patch" and strategy == "strategic" and group and group not in _BUILT_IN:
        yield STRATEGIC_PATCH.at(path, f"{template} patches a {resource.kind} of {group}")


def _retry(template: Template, resource: ResourceObject, path: Path) -> Iterator[Finding]:
    action = as_text(template.part("resource").get("action"))
    at = (*path, "manifest")
    if action == "apply" and resource.generated and not resource.name:
        yield APPLY_GENERATED.at(at, f"{template} applies a {resource.kind} with generateName")
    if not template.setting("retryStrategy") or action != "create":
        return
    if resource.generated and not resource.name:
        yield SECOND_JOB.at(at, f"{template} creates another {resource.kind} at each retry")
    elif resource.name and "retries" not in resource.name and "pod.name" not in resource.name:
        yield SAME_NAME.at(at, f"{template} creates {resource.kind} {resource.name!r} again at each retry")


def _owner(spec: Spec, template: Template, resource: ResourceObject, path: Path) -> Iterator[Finding]:
    if template.part("resource").get("setOwnerReference") is not True:
        return
    comparable = resource.namespace and spec.namespace and not has_tag(resource.namespace)
    if comparable and resource.namespace != spec.namespace:
        message = f"the {resource.kind} is in {resource.namespace!r}, the workflow in {spec.namespace!r}"
        yield OWNER_NAMESPACE.at((*path, "setOwnerReference"), message)


CHECKS = (_conditions, _manifests)
