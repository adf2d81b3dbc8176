"""DIJobs as upstream documents them, and the pods and services that they become. Rewrite with
--update-golden.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.di_job import pods
from edl_workflows.core.jobs.di_job.model import DIJob

FOLDER = Path(__file__).parent / "di_jobs"
EXAMPLES = ("distributed", "serial", "preemptible")
SETTINGS = InstallationSettings(di_priority_classes={"high": "urgent"})


def read(name: str) -> DIJob:
    return DIJob.parse(yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))


def made(job: DIJob) -> list[dict[str, Any]]:
    """The service, and all pods."""
    maker = pods.DIPodMaker(job, SETTINGS)
    return [pods.make_service(job), *(maker.pod(replica) for replica in pods.list_replicas(job))]


@pytest.mark.parametrize("name", EXAMPLES)
def test_children_are_as_recorded(name: str, update_golden: bool) -> None:
    """The pods and services of each example equal the recorded ones, so that they change only on purpose."""
    text = yaml.safe_dump_all(made(read(name)), sort_keys=False, width=110)
    path = FOLDER / f"{name}.pods.yaml"
    if update_golden:
        path.write_text(text, encoding="utf-8")

    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_is_told_who_it_is(name: str) -> None:
    """The host name at a pod's rank in the list of all pods is its own, and so is the one at its index in the
    list of its task."""
    job = read(name)
    maker = pods.DIPodMaker(job, SETTINGS)
    for replica in pods.list_replicas(job):
        made = maker.pod(replica)
        for container in made["spec"]["containers"]:
            told = {v["name"]: v.get("value", "") for v in container["env"]}
            host = ".".join((made["spec"]["hostname"], made["spec"]["subdomain"], "rl", "svc.cluster.local"))
            assert told["DI_NODES"].split(",")[int(told["DI_RANK"])] == host
            assert (
                told[f"DI_{replica.task.title.upper()}_NODES"].split(",")[int(told["DI_TASK_RANK"])] == host
            )
