"""Operators on DIJobs. What is changed of a running one: `scale_plan` and `elastic_job`, with ``kind="DIJob"``."""

from typing import ClassVar

from edl_workflows.operators.job import SubmitJobOperator


class SubmitDIJobOperator(SubmitJobOperator):
    """Create a DIJob and wait until it has succeeded; all as `SubmitJobOperator`."""

    manifest_kind: ClassVar[str] = "DIJob"
