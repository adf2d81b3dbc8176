"""Structural schemas and CEL expressions of CustomResourceDefinitions, as a Kubernetes API server reads them.

`structural` prunes, sets defaults and finds violations; `cel` evaluates expressions. Both return values: the
embedded API server (`edl_workflows.local.apiserver`) and the linter of Argo manifests
(`edl_workflows.pipelines.argo.lint`) put them into their own words. Pure; nothing is imported here, since
celpy takes long to load.
"""
