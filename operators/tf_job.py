"""Operators on TFJobs. What is changed of a running one: `scale_plan` and `elastic_job`, with ``kind="TFJob"``."""

from typing import ClassVar

from edl_workflows.operators.job import SubmitJobOperator


class SubmitTFJobOperator(SubmitJobOperator):
    """Create a TFJob, of ``kubeflow.org/v1`` or an older version (``v1beta2``, ``v1beta1``, ``v1alpha2``), and wait until it has succeeded; all as `SubmitJobOperator`."""

    manifest_kind: ClassVar[str] = "TFJob"
