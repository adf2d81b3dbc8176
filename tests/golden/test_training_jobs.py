"""TrainingJobs as upstream documents them, and the pods and services that they become. Rewrite with
--update-golden.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.core.jobs.training_job import pods
from edl_workflows.core.jobs.training_job.model import TrainingJob
from edl_workflows.core.jobs.training_job.types import TrainingRole

FOLDER = Path(__file__).parent / "training_jobs"
EXAMPLES = ("design-document", "fault-tolerant", "shell")


def children(job: TrainingJob) -> list[dict[str, Any]]:
    """The last pod of each role, and its service."""
    found = []
    for role, count in job.spec.counts.items():
        if pods.has_service(job, role):
            found.append(pods.make_service(job, role, count - 1))
        found.append(pods.make_pod(job, role, count - 1))
    return found


@pytest.mark.parametrize("name", EXAMPLES)
def test_children_are_as_recorded(name: str, update_golden: bool) -> None:
    """The pods and services of each example equal the recorded ones, so that they change only on purpose."""
    job = TrainingJob.parse(yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))
    text = yaml.safe_dump_all(children(job), sort_keys=False, width=110)
    path = FOLDER / f"{name}.pods.yaml"
    if update_golden:
        path.write_text(text, encoding="utf-8")

    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_is_told_what_it_is(name: str) -> None:
    """Roles, ranks and addresses are consistent between the pods of a job."""
    job = TrainingJob.parse(yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))
    lists = set()
    for role, index in pods.list_replicas(job):
        env = {
            v["name"]: v.get("value", "")
            for v in pods.make_pod(job, role, index)["spec"]["containers"][0]["env"]
        }
        servers = env["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")
        lists.add(
            (env["TRAINERS"], env["PADDLE_TRAINERS_NUM"], len(servers) == int(env["PSERVERS"]), *servers)
        )
        assert env["TRAINING_ROLE"] == role.upper()
        if role is TrainingRole.PSERVER:
            assert env["PADDLE_CURRENT_ENDPOINT"] == servers[index]
        if role is TrainingRole.TRAINER:
            assert env["PADDLE_TRAINER_ID"] == env["PADDLE_INIT_TRAINER_ID"] == str(index)
    assert len(lists) == 1
    assert next(iter(lists))[2] is True
