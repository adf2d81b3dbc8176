"""How often masters write progress: the period that the controller publishes, on the embedded API server."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl_workflows.core.exceptions import EdlError, ForbiddenError
from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOBS as JOBS
from edl_workflows.core.jobs.kinds import choose_kinds
from edl_workflows.core.jobs.left_alone import LEFT_ALONE
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.core.partitions import owner_of
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, RequestRecord
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, PODS, Scope
from edl_workflows.runtime.process.partition import Partition
from edl_workflows.services.controller import progress_budget
from edl_workflows.services.controller.manager import Manager, ManagerOptions
from edl_workflows.services.controller.metrics import ControllerMetrics
from edl_workflows.services.controller.observed_cluster import ObservedCluster
from edl_workflows.services.controller.progress_budget import (
    BATCH,
    BATCH_SECONDS,
    LOOK_SECONDS,
    PRUNED_SECONDS,
    ProgressBudget,
)
from edl_workflows.services.controller.scaling_loop import ScalingContext
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.support import elastic_job, status_of


class Installation:
    """A controller's cache, and budgets over it."""

    def __init__(self, cluster: Cluster) -> None:
        self.requests: list[str] = []
        """The verbs of all but watches."""
        self.metrics = ControllerMetrics()
        self._cluster = cluster
        self._observed = cluster.observed_by(self._note_request)
        self._world = ObservedCluster(
            self._observed,
            NamespaceSelection.of(cluster.namespace),
            (JOBS,),
            (JOBS.api,),
            lambda _group: None,
            lambda *_: None,
        )
        self._world.start()
        assert self._world.wait_synced(240)

    def add_jobs(self, count: int, **status: Any) -> list[str]:
        """Create jobs with this status; return their names."""
        desired = {"phase": "Running"} | status
        created = [f"job-{len(self._world.items(JOBS)) + number}" for number in range(count)]
        for name in created:
            client.create(self._cluster, elastic_job(name))
            client.patch_status(self._cluster, ELASTIC_JOBS, name, desired)
        eventually(lambda: all(self._cached_phases().get(name) == desired["phase"] for name in created))
        return created

    def delete_jobs(self, deleted: list[str]) -> None:
        """Delete jobs, and wait until the cache has none of them."""
        for name in deleted:
            client.delete(self._cluster, ELASTIC_JOBS, name)
        eventually(lambda: self._cached_phases().keys().isdisjoint(deleted))

    def make_budget(
        self,
        writes_per_second: float,
        guard: Callable[[], None] = lambda: None,
        partition: Partition | None = None,
    ) -> ProgressBudget:
        """The budget of a leader that has just begun, or of a replica with a partition of the jobs."""
        settings = InstallationSettings(progress_writes_per_second=writes_per_second)
        return ProgressBudget(
            ScalingContext(
                self._observed,
                (self._cluster.namespace,),
                self._world,
                settings,
                guard,
                lambda _group: None,
                self.metrics,
                partition or Partition(),
            )
        )

    def published(self) -> dict[str, Any]:
        """The published period by job; None where it is absent."""
        jobs = client.list_objects(self._cluster, Scope(ELASTIC_JOBS, self._cluster.namespace)).items
        return {
            job["metadata"]["name"]: (job.get("status") or {}).get("progressPeriodSeconds") for job in jobs
        }

    def stop(self) -> None:
        self._world.stop(20)

    def _note_request(self, record: RequestRecord) -> None:
        if record.verb != "watch":
            self.requests.append(record.verb)

    def _cached_phases(self) -> dict[str, Any]:
        return {
            job["metadata"]["name"]: (job.get("status") or {}).get("phase") for job in self._world.items(JOBS)
        }


@pytest.fixture
def installation(cluster: Cluster) -> Iterator[Installation]:
    """One without jobs."""
    made = Installation(cluster)
    yield made
    made.stop()


def _publish_all(budget: ProgressBudget) -> None:
    while budget.publish() == BATCH_SECONDS:
        pass


def test_jobs_within_the_budget_cost_no_write(installation: Installation) -> None:
    """While one write a minute of each job is within the budget, nothing is published, and looking sends no
    request."""
    installation.add_jobs(3)
    installation.requests.clear()

    budget = installation.make_budget(3 / 60)
    assert budget.publish() == LOOK_SECONDS

    assert budget.period == 60
    assert installation.requests == []
    assert set(installation.published().values()) == {None}


def test_masters_of_running_jobs_get_the_period(installation: Installation) -> None:
    """Each job whose master writes gets the period; jobs that do not run yet or any more, and those that
    another operator runs, neither get it nor count. The metric shows it."""
    writing = [
        *installation.add_jobs(2),
        *installation.add_jobs(1, phase="Scaling"),
        *installation.add_jobs(1, phase="Restarting"),
    ]
    for phase in ("Pending", "Suspended", "Succeeded", "Failed"):
        installation.add_jobs(1, phase=phase)
    installation.add_jobs(1, conditions=[{"type": LEFT_ALONE, "status": "True", "reason": "x"}])

    _publish_all(installation.make_budget(4 / 120))

    published = installation.published()
    assert {name for name, period in published.items() if period is not None} == set(writing)
    assert {published[name] for name in writing} == {120}
    registry = installation.metrics.registry
    assert registry.get_sample_value("edl_controller_progress_period_seconds") == 120


def test_publishing_has_a_budget_itself(installation: Installation) -> None:
    """At most five statuses are written a second, each once, and afterwards none."""
    jobs = installation.add_jobs(2 * BATCH + 1)
    budget = installation.make_budget(0.1)
    installation.requests.clear()

    for written in (BATCH, 2 * BATCH):
        assert budget.publish() == BATCH_SECONDS >= 1.0
        assert len(installation.requests) == written
    assert budget.publish() == LOOK_SECONDS
    assert budget.publish() == LOOK_SECONDS

    assert installation.requests == ["patch"] * len(jobs)
    assert set(installation.published().values()) == {budget.period} == {120}


def test_a_new_leader_keeps_the_period(installation: Installation) -> None:
    """A controller that takes over continues with the published period, and shortens it only when the jobs
    have become clearly fewer."""
    jobs = installation.add_jobs(7)
    _publish_all(installation.make_budget(6 / 60))
    installation.delete_jobs(jobs[:1])
    installation.requests.clear()

    budget = installation.make_budget(6 / 60)
    _publish_all(budget)

    assert budget.period == 120
    assert installation.requests == []
    installation.delete_jobs(jobs[1:3])
    _publish_all(budget)
    assert budget.period == 60
    assert set(installation.published().values()) == {60}


def test_replicas_with_different_pasts_agree(installation: Installation) -> None:
    """Replicas that have chosen different periods choose the same one, as soon as they see the same jobs."""
    installation.add_jobs(3)
    idle = installation.make_budget(6 / 60)
    _publish_all(idle)
    jobs = installation.add_jobs(4)
    busy = installation.make_budget(6 / 60)
    _publish_all(busy)
    installation.delete_jobs(jobs[:1])
    assert (idle.period, busy.period) == (60, 120)

    for budget in (busy, idle):
        _publish_all(budget)

    assert idle.period == busy.period == 120
    assert set(installation.published().values()) == {120}


def test_a_replica_publishes_to_its_own_jobs(installation: Installation, cluster: Cluster) -> None:
    """A replica that shares the jobs counts all of them, and writes the period only to those of its part."""
    jobs = installation.add_jobs(12)
    partition = Partition()
    partition.begin(0, frozenset({0, 1}))

    budget = installation.make_budget(12 / 120, partition=partition)
    _publish_all(budget)

    published = installation.published()
    own = {name for name in jobs if owner_of(f"{cluster.namespace}/{name}", (0, 1)) == 0}
    assert budget.period == 120
    assert {name for name, period in published.items() if period == 120} == own
    assert 0 < len(own) < len(jobs)


def test_a_controller_publishes_the_period(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller counts the jobs again and again, and a job that has begun to run gets the period."""
    monkeypatch.setattr(progress_budget, "LOOK_SECONDS", 0.1)
    settings = InstallationSettings(progress_writes_per_second=0.1 / 60)
    options = ManagerOptions(NamespaceSelection.of(cluster.namespace), 2, settings, choose_kinds(()))
    manager = Manager(cluster, options, ControllerMetrics(), lambda: None)
    manager.start()
    try:
        client.create(cluster, elastic_job())
        master = names.master_pod_name("mnist", 0)
        eventually(lambda: client.find(cluster, PODS, master) is not None)
        client.patch_status(cluster, PODS, master, {"phase": "Running"})

        eventually(lambda: status_of(cluster, "mnist").get("progressPeriodSeconds") == 960)
    finally:
        manager.stop()


def test_a_masters_write_keeps_the_period(installation: Installation, cluster: Cluster) -> None:
    """A master writes its own fields of the status, and the published period stays."""
    (name,) = installation.add_jobs(1)
    _publish_all(installation.make_budget(0.1 / 60))

    client.patch_status(cluster, ELASTIC_JOBS, name, {"progress": {"step": 7}, "warnings": []})

    assert status_of(cluster, name)["progressPeriodSeconds"] == 960
    assert status_of(cluster, name)["progress"]["step"] == 7


def test_an_older_definition_is_not_written_again_and_again(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the API server drops the field, because its definition is older, one write in ten minutes finds out
    whether that has changed."""
    installation.add_jobs(3)
    patch_status = client.patch_status

    def drop_field(*arguments: Any) -> Any:
        answer = patch_status(*arguments)
        answer["status"].pop("progressPeriodSeconds")
        return answer

    monkeypatch.setattr(client, "patch_status", drop_field)
    installation.requests.clear()

    assert installation.make_budget(0.01).publish() == PRUNED_SECONDS >= 600

    assert len(installation.requests) == 1


def test_a_refused_job_keeps_no_other_waiting(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A webhook may refuse the writes about some jobs: the others get the period all the same."""
    refused, *accepted = installation.add_jobs(BATCH + 2)
    patch_status = client.patch_status

    def refuse(cluster: Cluster, resource: Any, name: str, *arguments: Any) -> Any:
        if name == refused:
            raise ForbiddenError("denied the request")
        return patch_status(cluster, resource, name, *arguments)

    monkeypatch.setattr(client, "patch_status", refuse)

    _publish_all(installation.make_budget(0.01))

    assert {name for name, period in installation.published().items() if period} == set(accepted)


def test_a_former_leader_publishes_nothing(installation: Installation) -> None:
    """A process that has lost its leadership writes no period."""
    installation.add_jobs(1)
    installation.requests.clear()

    def refuse() -> None:
        raise EdlError("not the leader")

    with pytest.raises(EdlError, match="leader"):
        installation.make_budget(0.01, refuse).publish()

    assert installation.requests == []
