"""The operator that submits PyTorchJobs. Other operators change a running one with ``kind="PyTorchJob"``."""

from typing import ClassVar

from edl_workflows.operators.job import SubmitJobOperator


class SubmitPyTorchJobOperator(SubmitJobOperator):
    """Create a PyTorchJob (``kubeflow.org/v1``), and wait until it has succeeded. Arguments and result are
    those of `SubmitJobOperator`."""

    manifest_kind: ClassVar[str] = "PyTorchJob"
