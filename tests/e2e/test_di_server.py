"""A DIJob that trains is changed through the DI server, as its own programs would do it."""

import base64
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from edl_workflows.core.jobs.di_job.model import DIJobPhase
from edl_workflows.local import daemon
from edl_workflows.runtime.kube import client, resources
from tests import local_cluster
from tests.e2e.di_jobs import BEST_RETURN, SLOW, DITraining, manifest
from tests.e2e.submitted import Container

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[local_cluster.LocalCluster]:
    """An embedded cluster with its controller and its DI server."""
    settings = local_cluster.Settings(controller=True, di_server=True, grace=5.0)
    with local_cluster.cluster(tmp_path_factory.mktemp("cluster"), settings) as found:
        yield found


def test_a_job_that_trains_is_scaled_by_http(running: local_cluster.LocalCluster, tmp_path: Path) -> None:
    """A collector is added, gets the addresses and is used by the learner, and another one is removed. The
    job's reports are in its status, the learner is never restarted, and the job succeeds."""
    found = daemon.find(running.folder)
    assert found is not None
    job = DITraining.submit_manifest(
        running.client(), manifest("http", tmp_path, Container("local", sys.executable), *SLOW), tmp_path
    )
    job.await_phase(DIJobPhase.RUNNING)
    job.learns_from(1)
    learner = job.uid("learner-0")
    main = next(pod for pod in job.pods() if pod["metadata"]["uid"] == learner)["spec"]["containers"][0]
    assert {"name": "DI_SERVER_URL", "value": found.di_server} in main["env"]
    secret = client.get(job.cluster, resources.SECRETS, f"{job.name}-di-token")
    token = base64.b64decode(secret["data"]["token"]).decode()

    def ask(method: str, call: str, **more: Any) -> Any:
        url = f"{found.di_server}/v2alpha1/{job.cluster.namespace}.{job.name}.0/{call}"
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.request(method, url, headers=headers, timeout=90, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    ask("POST", "replicas", json={"replicas": 1})
    places = ask("GET", "replicas", params={"timeout": 60})
    assert len(places) == len(set(places)) == 5
    assert all(place.endswith(":22270") for place in places)
    job.learns_from(2)
    ask("DELETE", "replicas", json={"replicas": 2})
    job.until(lambda: len(job.pods()) == 3, 60, "two collectors are gone")
    job.learns_from(0)
    ask("POST", "profilings", json={"data": {"walks": job.walks(0)}})
    assert job.get().status.profilings["walks"] > 0

    assert job.uid("learner-0") == learner
    job.await_phase(DIJobPhase.SUCCEEDED, 240)
    assert job.progress()["evaluation"] >= BEST_RETURN
    assert job.get().status.restarts == 0
