"""The operator that submits ElasticJobs. Other operators change a running one."""

from typing import ClassVar

from edl_workflows.operators.job import SubmitJobOperator


class SubmitElasticJobOperator(SubmitJobOperator):
    """Create an ElasticJob and wait until it has succeeded. Arguments and result are those of
    `SubmitJobOperator`."""

    manifest_kind: ClassVar[str] = "ElasticJob"
