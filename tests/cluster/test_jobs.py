"""ElasticJobs in real pods with TensorFlow: train, change, suspend, delete. Prints how long the steps
take."""

import json
import time
from pathlib import Path

import pytest

from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.cli.root import run
from edl_workflows.pipelines.install import rbac
from edl_workflows.pipelines.stages.delete import DELETE, DeleteRequest
from edl_workflows.pipelines.stages.migrate_ps import MIGRATE_PS, MigratePsRequest
from edl_workflows.pipelines.stages.scale import SCALE, ScaleRequest
from edl_workflows.pipelines.stages.suspend import RESUME, SUSPEND, ResumeRequest, SuspendRequest
from edl_workflows.runtime.kube import client, resources
from tests.cluster.installed import account_of
from tests.cluster.training import Place
from tests.e2e.records import all_records, consumed, evaluate, trained

pytestmark = [pytest.mark.tensorflow, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

ROLES = (names.PS_TYPE, names.WORKER_TYPE, names.MASTER_TYPE)
OWNED = (
    resources.PODS, resources.SERVICES, resources.SECRETS, resources.CONFIG_MAPS, resources.SERVICE_ACCOUNTS,
    resources.ROLES, resources.ROLE_BINDINGS, resources.SCALE_PLANS,
)  # fmt: skip


def test_job_grows_migrates_and_ends(here: Place, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The job has 1 server and 1 worker, then 2 workers, then 2 servers. Each record of each epoch is trained
    exactly once, the model is good, the logs of its pods can be read, and its master shows its figures."""
    epochs, begun = 60, time.monotonic()
    job = here.submit("grows", epochs, 0.1, {"ps": 1, "worker": 1})
    job.wait_step(1)
    print(f"submit to first step: {time.monotonic() - begun:.1f} s")

    begun = time.monotonic()
    job.run(SCALE, ScaleRequest(job=job.name, replicas={"worker": ReplicaResourceSpec(replicas=2)}))
    print(f"one more worker: {time.monotonic() - begun:.1f} s")
    _check_live_figures(here, job.name, tmp_path, capsys)
    begun = time.monotonic()
    job.run(MIGRATE_PS, MigratePsRequest(job=job.name, replicas=2))
    plan = job.plans()[-1].status
    print(f"migration of 1 to 2 servers: {time.monotonic() - begun:.1f} s, stall {plan.stall_seconds} s")
    assert plan.checkpoint is not None
    assert plan.resumed_step is not None
    assert plan.resumed_step > plan.checkpoint.step
    assert len(job.running(names.PS_TYPE)) == 2
    assert "epoch" not in job.log(job.pod(names.MASTER_TYPE)["metadata"]["name"])
    assert "starting the process of cluster version" in job.log(job.running(names.WORKER_TYPE)[0])
    job.training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED)

    times = trained(job.training.folder)
    assert set(times) == all_records(epochs)
    assert set(times.values()) == {1}
    assert evaluate(job.training.folder)["accuracy"] >= 0.93
    assert job.get().status.master_restarts == 0


def _check_live_figures(here: Place, job_name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The master of a job answers through the API server's proxy whoever has the right to it, and this right
    is enough; others are refused with the right that they lack."""
    service = f"{names.master_name(job_name)}:{names.MASTER_PORT}"
    proxy = rbac.policy_rule("", "services/proxy", "get", only=[service])
    for user, rights in (("viewer", []), ("watcher", [proxy])):
        account_of(here.bed, here.cluster.namespace, user, folder, [*rbac.viewer_rules(), *rights])

    def show(user: str, *command: str) -> tuple[int, str, str]:
        printed = capsys.readouterr().out
        code = run([*command, "--kubeconfig", str(folder / f"{user}.kubeconfig")])
        shown = capsys.readouterr()
        print(printed, end="")
        return code, shown.out, shown.err

    code, out, err = show("watcher", "top", job_name, "-o", "json")
    assert code == 0, err
    measured = json.loads(out)
    assert measured["live"], measured["obstacle"]
    assert measured["figures"]["step"] > 0
    code, out, err = show("watcher", "get", job_name, "--live", "-o", "json")
    assert code == 0, err
    assert json.loads(out)["status"]["progress"]["step"] >= measured["figures"]["step"]
    for command in (("top", job_name), ("get", job_name, "--live")):
        code, out, err = show("viewer", *command)
        assert (code, out) == (5, "")
        assert f'services "{service}" is forbidden' in err
        assert '"services/proxy"' in err


def test_suspended_job_frees_its_pods_and_goes_on_where_it_was(here: Place) -> None:
    """A suspension ends all pods after the chief has saved. After resuming, training continues from that
    step, and no record is lost."""
    epochs = 20
    job = here.submit("sleeps", epochs, 0.1, {"ps": 1, "worker": 1})
    job.wait_step(30)
    job.run(SUSPEND, SuspendRequest(name=job.name))
    suspended = job.get().status
    assert not any(job.running(role) for role in ROLES)
    assert suspended.checkpoint is not None
    assert suspended.checkpoint.step >= 30

    job.run(RESUME, ResumeRequest(name=job.name))
    job.training.hurry()
    job.wait_phase(JobPhase.SUCCEEDED)

    after = [step for name, _, step, _ in consumed(job.training.folder) if "-v1-" not in name]
    assert min(after) == suspended.checkpoint.step + 1
    times = trained(job.training.folder)
    assert set(times) == all_records(epochs)


def test_deleted_job_leaves_nothing(here: Place) -> None:
    """After a job is deleted, the garbage collector removes everything that it owned, including its pods."""
    job = here.submit("leaves", 1000, 0.1, {"ps": 1, "worker": 1})
    job.until(lambda: job.running(names.WORKER_TYPE), 120, "a worker runs")
    owned = f"{names.JOB_LABEL}={job.name}"

    def left() -> list[str]:
        scopes = [resources.Scope(kind, job.cluster.namespace, label_selector=owned) for kind in OWNED]
        return [
            f"{scope.resource.kind} {found['metadata']['name']}"
            for scope in scopes
            for found in client.list_objects(job.cluster, scope).items
        ]

    assert len(left()) > len(OWNED)
    job.run(DELETE, DeleteRequest(name=job.name))

    deadline = time.monotonic() + 90
    while remains := left():
        assert time.monotonic() < deadline, f"still there: {remains}"
        time.sleep(0.5)
