"""A job of many members with simulated agents, the real master and the real controller."""

import asyncio
from pathlib import Path

import pytest

from edl_workflows.testing import api_server
from tests.benchmarks.bench_big_job import BigJob
from tests.benchmarks.big_job_cluster import running_controller

MEMBERS = 128

pytestmark = [pytest.mark.e2e, pytest.mark.long]


def test_a_job_of_many_members_loses_a_third_and_its_master(tmp_path: Path) -> None:
    """All register at once with one request for their pods; for each that is lost one pod is created; a new
    master of all of them changes nothing; and no record is lost. How many plans and versions that takes
    depends on the time within which the losses are reported: `test_loss_batch` has the law."""
    with api_server(tmp_path) as server, running_controller(server):
        job = asyncio.run(BigJob(server, MEMBERS, 1.0).run())
    assert [str(figure) for figure in job.figures if figure.counted and not figure.met] == []
