"""Operators on TrainingJobs. What is changed of a running one: `scale_plan` and `elastic_job`, with ``kind="TrainingJob"``."""

from typing import ClassVar

from edl_workflows.operators.job import SubmitJobOperator


class SubmitTrainingJobOperator(SubmitJobOperator):
    """Create a TrainingJob and wait until it has succeeded; all as `SubmitJobOperator`."""

    manifest_kind: ClassVar[str] = "TrainingJob"
