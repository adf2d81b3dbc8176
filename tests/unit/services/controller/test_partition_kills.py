"""Controllers that share the jobs are killed at random moments, also while others take over."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, PODS, Object, Scope
from edl_workflows.testing import ApiServerProcess
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.support import crds, elastic_job

PARTITIONS = 3
KILLS = 6
USERS = [f"controller-{number}" for number in range(PARTITIONS + KILLS)]
RENEW_SECONDS = 7.0
RUNNING = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


@dataclass
class Write:
    """A write in the audit log: when it ended, by whom, and what."""

    time: float
    user: str
    method: str
    path: str
    body: dict[str, Any]

    @property
    def lease(self) -> bool:
        return "/leases" in self.path

    @property
    def job(self) -> str:
        """The job that it is about; "" if it is about none."""
        if "/elasticjobs/" in self.path:
            return self.path.partition("/elasticjobs/")[2].partition("/")[0]
        owners = self.body.get("metadata", {}).get("ownerReferences") or [{}]
        return str(owners[0].get("name", "")) if self.method == "POST" else ""


class AuditedServer(ApiServerProcess):
    """An API server with a log of the writes."""

    def start(self) -> None:
        """Start it and wait until it answers."""
        module = "tests.unit.services.controller.audited_api_server"
        command = [sys.executable, "-m", module, str(self.directory), str(self.port), ",".join(USERS)]
        self._process = subprocess.Popen(command, start_new_session=True)
        eventually(self._answers, 240)

    def kubeconfig_of(self, user: str) -> Path:
        """A kubeconfig with the user's token."""
        config = yaml.safe_load(self.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": user}
        path = self.directory / f"{user}.yaml"
        path.write_text(yaml.safe_dump(config))
        return path

    def writes(self) -> list[Write]:
        """All writes of controllers until now."""
        lines = (self.directory / "audit.jsonl").read_text().splitlines()
        return [write for line in lines if (write := Write(*json.loads(line))).user in USERS]


@dataclass
class Controllers:
    """The processes.

    Attributes:
        server: the API server.
        running: by user.
        killed: when each one was killed, by user.
    """

    server: AuditedServer
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    killed: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        """Start another one."""
        user = USERS[len(self.running) + len(self.killed)]
        command = [
            sys.executable,
            "-m",
            "edl_workflows",
            "controller",
            "run",
            "--kinds",
            "ElasticJob,ScalePlan",
        ]
        command += ["--kubeconfig", str(self.server.kubeconfig_of(user)), "--namespace", "default"]
        command += ["--partitions", str(PARTITIONS), "--metrics-port", "0", "--workers", "4"]
        with (self.server.directory / f"{user}.log").open("wb") as log:
            self.running[user] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, user: str) -> None:
        """Kill one at once."""
        process = self.running.pop(user)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.killed[user] = time.monotonic()


@pytest.fixture
def controllers(tmp_path: Path) -> Iterator[Controllers]:
    """None yet, on an API server of their own."""
    server = AuditedServer(tmp_path)
    server.start()
    for crd in crds():
        client.create(server.cluster(), crd)
    made = Controllers(server)
    yield made
    for user in list(made.running):
        made.kill(user)
    server.kill()


@pytest.mark.slow
@pytest.mark.long
def test_killed_controllers_never_write_to_a_job_of_another(controllers: Controllers) -> None:
    """Of three controllers one after the other is killed, at any moment of a take-over, and replaced. By the
    API server's log, no controller writes to a job before the one that wrote to it earlier has acknowledged
    it after its own last write, or has not renewed its Lease for 7 s. At the end each job has its
    master, and follows it."""
    cluster = controllers.server.cluster()
    draws = random.Random(os.environ.get("EDL_KILL_SEED", "1"))
    for _ in range(PARTITIONS):
        controllers.start()
    eventually(lambda: _count_holders(controllers) == PARTITIONS, 240)
    jobs: list[str] = []
    for _ in range(KILLS):
        end = time.monotonic() + draws.uniform(0.5, 16.0)
        while time.monotonic() < end:
            jobs.append(f"job-{len(jobs)}")
            client.create(cluster, elastic_job(jobs[-1]))
            _start_or_stop(cluster, draws)
            time.sleep(0.3)  # the moments are random, and so is the load
        controllers.kill(draws.choice(sorted(controllers.running)))
        controllers.start()

    eventually(lambda: len(_list_masters(cluster)) == len(jobs), 240)
    masters = _list_masters(cluster)
    for master in masters:
        client.patch_status(cluster, PODS, master["metadata"]["name"], RUNNING)
    eventually(lambda: _are_running(cluster, jobs), 240)
    assert sorted(pod["metadata"]["labels"][names.JOB_LABEL] for pod in masters) == sorted(jobs)
    changes, seconds = _check_owners(controllers.server.writes(), controllers.killed)
    print(f"{len(jobs)} jobs, {changes} changes of a job's owner, taken over after {sorted(seconds)} s")
    assert changes, "jobs have moved"


def _count_holders(controllers: Controllers) -> int:
    return len({write.user for write in controllers.server.writes() if write.lease})


def _list_masters(cluster: Cluster) -> list[Object]:
    return client.list_objects(cluster, Scope(PODS, "default")).items


def _start_or_stop(cluster: Cluster, draws: random.Random) -> None:
    """Change the states of some masters' pods, so that their jobs' statuses must follow."""
    pods = _list_masters(cluster)
    for pod in draws.sample(pods, min(4, len(pods))):
        runs = (pod.get("status") or {}).get("phase") == "Running"
        status = {"phase": "Pending", "conditions": []} if runs else RUNNING
        client.patch_status(cluster, PODS, pod["metadata"]["name"], status)


def _are_running(cluster: Cluster, jobs: list[str]) -> bool:
    stored = client.list_objects(cluster, Scope(ELASTIC_JOBS, "default")).items
    return len(stored) == len(jobs) and all(
        (job.get("status") or {}).get("phase") == "Running" for job in stored
    )


def _check_owners(writes: Iterable[Write], killed: Mapping[str, float]) -> tuple[int, list[float]]:
    """Check the log; return how often a job got another owner, and how long after its death the jobs of each
    killed controller were written to again."""
    owner: dict[str, str] = {}
    last: dict[str, float] = {}
    identity: dict[str, str] = {}
    acknowledged: dict[tuple[str, str], float] = {}
    renewed: dict[str, float] = {}
    taken_over: dict[str, float] = {}
    changes = 0
    for write in writes:
        if write.lease:
            renewed[write.user] = write.time
            identity[write.user] = write.body["spec"]["holderIdentity"]
            text = write.body["metadata"].get("annotations", {}).get(names.ACKNOWLEDGED_ANNOTATION, "")
            for other in text.split(","):
                acknowledged.setdefault((write.user, other), write.time)
        elif write.job:
            before = owner.setdefault(write.job, write.user)
            if before != write.user:
                since = acknowledged.get((before, identity[write.user]), float("inf"))
                expired = write.time - renewed[before] > RENEW_SECONDS
                assert last[write.job] < since <= write.time or expired, f"{write}: {before} is the owner"
                if killed.get(before, float("inf")) < write.time:
                    taken_over.setdefault(before, round(write.time - killed[before], 1))
                owner[write.job] = write.user
                changes += 1
            last[write.job] = write.time
    return changes, list(taken_over.values())


def _renewal(time: float, user: str, *acknowledged: str) -> Write:
    annotations = {names.ACKNOWLEDGED_ANNOTATION: ",".join(acknowledged)}
    body = {"metadata": {"annotations": annotations}, "spec": {"holderIdentity": user}}
    return Write(time, user, "PUT", "/apis/coordination.k8s.io/v1/namespaces/default/leases/x", body)


def _status(time: float, user: str) -> Write:
    path = "/apis/elastic.iml.github.io/v1alpha1/namespaces/default/elasticjobs/mnist/status"
    return Write(time, user, "PATCH", path, {})


def test_the_check_accepts_a_handover_and_a_takeover() -> None:
    """A job may go to a new replica that its owner has acknowledged, and back when that one's Lease has
    expired."""
    handover = [_renewal(0, "old"), _status(1, "old"), _renewal(2, "new", "old"), _renewal(3, "old", "new")]
    takeover = [_status(4, "new"), _renewal(5, "new", "old"), _renewal(12, "old"), _status(13, "old")]

    assert _check_owners(handover + takeover, {"new": 6.0, "old": 20.0}) == (2, [7.0])


@pytest.mark.parametrize(
    "writes",
    [
        pytest.param([_status(4, "new"), _status(5, "old")], id="both write"),
        pytest.param([_status(4, "old"), _status(5, "new")], id="the owner writes after it has given way"),
    ],
)
def test_the_check_notices_two_owners(writes: list[Write]) -> None:
    """Two live replicas that acknowledge each other may not write to the same job in turn."""
    renewals = [_renewal(0, "old"), _status(1, "old"), _renewal(2, "new", "old"), _renewal(3, "old", "new")]

    with pytest.raises(AssertionError, match="is the owner"):
        _check_owners(renewals + writes, {})
