"""The operator that submits TrainingJobs. Other operators change a running one with
``kind="TrainingJob"``."""

from typing import ClassVar

from edl_workflows.operators.job import SubmitJobOperator


class SubmitTrainingJobOperator(SubmitJobOperator):
    """Create a TrainingJob and wait until it has succeeded. Arguments and result are those of
    `SubmitJobOperator`."""

    manifest_kind: ClassVar[str] = "TrainingJob"
