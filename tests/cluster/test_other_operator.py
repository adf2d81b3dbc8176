"""A job that another operator runs, on a real cluster."""

import pytest

from tests.cluster.training import Place, container
from tests.e2e.other_operator import hand_over_a_job

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_job_of_another_operator_is_taken_over_on_request(here: Place) -> None:
    """The pod that training-operator made stays until the job is handed over."""
    hand_over_a_job(here.cluster, "theirs", container(here.bed).runs("-c", "import time; time.sleep(600)"))
