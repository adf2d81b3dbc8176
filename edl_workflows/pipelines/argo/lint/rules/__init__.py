"""All rules, by topic. Each module has the `RULES` that it finds and the `CHECKS` that find them."""

from collections.abc import Iterator

from edl_workflows.pipelines.argo.lint import cel, documents, schema
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule
from edl_workflows.pipelines.argo.lint.rules import (
    calls,
    cron,
    dag,
    durations,
    head,
    job_order,
    lifecycle,
    manifests,
    outputs,
    placeholders,
    plugin,
    resource,
    templates,
)
from edl_workflows.pipelines.argo.lint.rules.head import check_head
from edl_workflows.pipelines.argo.lint.workflow import Check, Spec

__all__ = ["CHECKS", "RULES", "check_head", "check_spec"]

RULES: tuple[Rule, ...] = (
    *documents.RULES, *head.RULES, *schema.RULES, *cel.RULES, *templates.RULES, *calls.RULES, *dag.RULES,
    *placeholders.RULES, *outputs.RULES, *durations.RULES, *resource.RULES, *manifests.RULES, *plugin.RULES,
    *job_order.RULES, *lifecycle.RULES, *cron.RULES,
)  # fmt: skip
"""Every rule, in the order of its reference page."""

CHECKS: tuple[Check, ...] = (
    *templates.CHECKS, *calls.CHECKS, *dag.CHECKS, *placeholders.CHECKS, *outputs.CHECKS, *durations.CHECKS,
    *resource.CHECKS, *manifests.CHECKS, *plugin.CHECKS, *job_order.CHECKS, *lifecycle.CHECKS,
    *cron.CHECKS,
)  # fmt: skip


def check_spec(spec: Spec) -> Iterator[Finding]:
    """What the rules find in a workflow's spec."""
    for check in CHECKS:
        yield from check(spec)
