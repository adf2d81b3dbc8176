"""A linter for Argo manifests, which needs no cluster, Argo binary or Hera.

`check` checks one manifest, `check_texts` the documents of files, which may refer to each other. There are
two layers: what a strict API server would refuse (`schema`, `cel`: Argo's full CustomResourceDefinitions,
shipped as data), and what it accepts although it cannot work (`rules`).
"""

from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.pipelines.argo.lint.linter import check, check_texts

__all__ = ["Finding", "Rule", "Severity", "check", "check_texts"]
