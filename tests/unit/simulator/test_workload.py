"""Jobs of a workload."""

import math

import pytest

from edl_workflows.exceptions import InvalidError
from edl_workflows.simulator.workload import WorkloadJob


@pytest.mark.parametrize(
    ("submitted", "replicas", "batch_size"), [(math.nan, 1, 1), (-1, 1, 1), (0, 0, 1), (0, 1, 0)]
)
def test_bad_jobs(submitted: float, replicas: int, batch_size: int) -> None:
    """A job without a time, replicas or a batch is refused."""
    with pytest.raises(InvalidError, match="job a"):
        WorkloadJob("a", submitted, "digits", replicas, batch_size)
