"""What is wrong with Argo manifests, found before a cluster sees them.

`check` looks at one manifest, `check_texts` at the documents of files, which may refer to each other. Two
layers: what a strict API server would refuse (`schema`, `cel`: Argo's full CustomResourceDefinitions, shipped
as data), and what it takes but what can't work (`rules`). No cluster, no Argo binary, no Hera.
"""

from edl_workflows.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.argo.lint.linter import check, check_texts

__all__ = ["Finding", "Rule", "Severity", "check", "check_texts"]
