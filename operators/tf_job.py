"""The operator that submits TFJobs. Other operators change a running one with ``kind="TFJob"``."""

from typing import ClassVar

from edl_workflows.operators.job import SubmitJobOperator


class SubmitTFJobOperator(SubmitJobOperator):
    """Create a TFJob, of ``kubeflow.org/v1`` or an older version (``v1beta2``, ``v1beta1``, ``v1alpha2``),
    and wait until it has succeeded. Arguments and result are those of `SubmitJobOperator`."""

    manifest_kind: ClassVar[str] = "TFJob"
