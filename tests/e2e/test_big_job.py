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
    """All register at once with one request for their pods; those that are lost at once are replaced by one
    plan, in one version of the survivors and one with the replacements; a new master of all of them changes
    nothing; and no record is lost."""
    with api_server(tmp_path) as server, running_controller(server):
        job = asyncio.run(BigJob(server, MEMBERS, 1.0).run())
    assert [str(figure) for figure in job.figures if figure.counted and not figure.met] == []
