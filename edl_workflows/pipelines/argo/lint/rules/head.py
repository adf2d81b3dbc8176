"""Rules about kind, version and name."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from edl_workflows.pipelines.argo.api import GROUP
from edl_workflows.pipelines.argo.lint import schema
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity, did_you_mean
from edl_workflows.pipelines.argo.lint.workflow import SPEC_PATHS, as_mapping, as_text

UNKNOWN_KIND = Rule(
    "unknown-kind",
    Severity.ERROR,
    "A kind or version that does not exist in Argo Workflows, but is similar to one that does.",
    "Correct apiVersion and kind.",
)
NO_NAME = Rule(
    "no-name",
    Severity.ERROR,
    "An object has neither name nor generateName.",
    "Set one of the two.",
)
OBJECT_NAME = Rule(
    "object-name",
    Severity.ERROR,
    "An object's name contains characters other than lower-case letters, digits, '-' and '.', or starts "
    "or ends with '-' or '.'.",
    "Rename the object. A generateName may end with '-'.",
)
LONG_NAME = Rule(
    "long-name",
    Severity.ERROR,
    "A name is longer than 63 characters (52 for a CronWorkflow, because Argo appends a time), so pods "
    "can't carry it as a label.",
    "Shorten the name.",
)
RULES = (UNKNOWN_KIND, NO_NAME, OBJECT_NAME, LONG_NAME)

_SUBDOMAIN = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_LONGEST = {"CronWorkflow": 52}


def check_head(manifest: Mapping[str, Any]) -> Iterator[Finding]:
    """Check kind, version and name of any document."""
    group, _, version = as_text(manifest.get("apiVersion")).partition("/")
    kind = as_text(manifest.get("kind"))
    if not group and kind in SPEC_PATHS:
        yield UNKNOWN_KIND.at(("apiVersion",), f"the {kind} has no apiVersion", f"Write {GROUP}/v1alpha1.")
    if group != GROUP:
        return
    kinds = schema.load_schemas().kinds
    if kind not in kinds:
        if close := did_you_mean(kind, kinds, 0.85):
            yield UNKNOWN_KIND.at(("kind",), f"{GROUP} has no kind {kind!r}", close)
        return
    if version != "v1alpha1":
        yield UNKNOWN_KIND.at(("apiVersion",), f"{kind} has no version {version!r}", "Write v1alpha1.")
    if kind in SPEC_PATHS:
        yield from _name(kind, as_mapping(manifest.get("metadata")))


def _name(kind: str, metadata: Mapping[str, Any]) -> Iterator[Finding]:
    name, prefix = as_text(metadata.get("name")), as_text(metadata.get("generateName"))
    if not name and not prefix:
        yield NO_NAME.at(("metadata",), f"the {kind} has no name")
    for field, value in (("name", name), ("generateName", prefix and f"{prefix}x")):
        if value and not _SUBDOMAIN.fullmatch(value):
            yield OBJECT_NAME.at(
                ("metadata", field), f"{as_text(metadata[field])!r} is not a valid name of an object"
            )
    longest = _LONGEST.get(kind, 63)
    if len(name) > longest:
        yield LONG_NAME.at(
            ("metadata", "name"), f"it has {len(name)} characters, but at most {longest} are allowed"
        )
