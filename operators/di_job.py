"""The operator that submits DIJobs. Other operators change a running one with ``kind="DIJob"``."""

from typing import ClassVar

from edl_workflows.operators.job import SubmitJobOperator


class SubmitDIJobOperator(SubmitJobOperator):
    """Create a DIJob and wait until it has succeeded. Arguments and result are those of
    `SubmitJobOperator`."""

    manifest_kind: ClassVar[str] = "DIJob"
