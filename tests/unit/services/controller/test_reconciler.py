"""The loop's body with state machines made for the purpose, against the embedded API server."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import structlog

from edl_workflows.core.exceptions import EdlError
from edl_workflows.core.jobs.actions import Actions, Deletion, Event, Observed, Patch
from edl_workflows.core.jobs.elastic_job.kind import CONFIG_MAPS as WATCHED_CONFIG_MAPS
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.kind import Source
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube import client, events
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import CONFIG_MAPS, ELASTIC_JOBS, Scope
from edl_workflows.services.controller.manager import Manager, ManagerOptions
from edl_workflows.services.controller.metrics import ControllerMetrics
from edl_workflows.services.controller.observed_cluster import JobGroup, ObservedCluster
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.support import elastic_job, names_of, status_of

Decide = Callable[[ElasticJob, Observed], Actions]


@dataclass
class Loop:
    """A manager over one kind whose decisions the test makes."""

    cluster: Cluster
    seen: list[Observed] = field(default_factory=list)
    writable: bool = True
    manager: Manager | None = None

    def start(self, decide: Decide) -> None:
        def reconcile(job: ElasticJob, observed: Observed) -> Actions:
            self.seen.append(observed)
            return decide(job, observed)

        kind = replace(kind_of("ElasticJob"), reconcile=reconcile, observes=(WATCHED_CONFIG_MAPS,))
        options = ManagerOptions(
            namespaces=NamespaceSelection.of(self.cluster.namespace), workers=2, kinds=(kind,)
        )
        self.manager = Manager(self.cluster, options, ControllerMetrics(), self._guard)
        self.manager.start()
        assert self.manager.world.wait_synced(240)

    def settled(self) -> bool:
        assert self.manager is not None
        return self.manager.idle and bool(self.seen)

    def _guard(self) -> None:
        if not self.writable:
            raise EdlError("not the leader")


@pytest.fixture
def loop(cluster: Cluster) -> Iterator[Loop]:
    """A loop to start; stopped at the end."""
    made = Loop(cluster)
    yield made
    if made.manager is not None:
        made.manager.stop()


def config_map(name: str, job: str = "mnist", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": {names.JOB_LABEL: job}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def test_reaches_a_fixed_point(loop: Loop, cluster: Cluster) -> None:
    """Creates, status and events are written once; decisions end when nothing is left to do."""

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        if observed.find("ConfigMap", "child") is None:
            return Actions(create=(config_map("child"),), status={"reason": "Made"})
        done = Actions(status={"reason": "Done"}, events=(Event("Normal", "Done", "all is there"),))
        return Actions() if job.status.reason == "Done" else done

    loop.start(decide)
    job = client.create(cluster, elastic_job())

    eventually(lambda: status_of(cluster, "mnist").get("reason") == "Done")
    eventually(loop.settled)
    assert events.of_object(cluster, job)[0]["count"] == 1
    assert len(loop.seen) <= 5


def test_own_creates_are_seen_at_once(loop: Loop, cluster: Cluster) -> None:
    """The decision after a create sees the created object, so that objects with generated names are created
    once."""
    made = 0

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        nonlocal made
        if len(observed.of("ConfigMap")) >= 5:
            return Actions()
        made += 1
        return Actions(create=(config_map(f"child-{made}"),))

    loop.start(decide)
    client.create(cluster, elastic_job())

    eventually(lambda: made == 5)
    eventually(loop.settled)
    assert made == 5


def test_a_clash_is_shown_to_the_next_decision(loop: Loop, cluster: Cluster) -> None:
    """If a foreign object has the name of a created one, the next decision sees this object."""
    foreign = client.create(cluster, {**config_map("child"), "metadata": {"name": "child"}})

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        there = observed.find("ConfigMap", "child")
        if there is None:
            return Actions(create=(config_map("child"),))
        return Actions(status={"message": there["metadata"]["uid"]} if not job.status.message else None)

    loop.start(decide)
    client.create(cluster, elastic_job())

    eventually(lambda: status_of(cluster, "mnist").get("message") == foreign["metadata"]["uid"])


def test_a_refusal_is_shown_to_the_next_decision(loop: Loop, cluster: Cluster) -> None:
    """If the server rejects an object as invalid, the log and the next decision have the rejection. The other
    actions are carried out."""
    bad = config_map("child") | {"data": {"a": {"not": "text"}}}

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        if job.status.message:
            return Actions()
        message = "; ".join(f"{r.name} {r.invalid}" for r in observed.refused)
        other = () if observed.find("ConfigMap", "other") else (config_map("other"),)
        return Actions(create=(bad, *other), status={"message": message} if message else None)

    with structlog.testing.capture_logs() as logs:
        loop.start(decide)
        client.create(cluster, elastic_job())
        eventually(lambda: status_of(cluster, "mnist").get("message") == "child True")
    assert client.find(cluster, CONFIG_MAPS, "other") is not None
    told = [(log["kind"], log["name"]) for log in logs if log["event"] == "create refused"]
    assert ("ConfigMap", "child") in told


def test_a_kind_that_is_not_installed_is_a_refusal(loop: Loop, cluster: Cluster) -> None:
    """If the server does not have the kind of an object, the next decision sees which one. The other actions
    are carried out."""
    gang = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": {"name": "gang"}}

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        message = "; ".join(f"{r.name}: {r.message} {r.invalid}" for r in observed.refused)
        other = () if observed.find("ConfigMap", "other") else (config_map("other"),)
        status = {"message": message} if message != job.status.message else None
        return Actions(create=(gang, *other), status=status)

    loop.start(decide)
    client.create(cluster, elastic_job())

    told = (
        "gang: it does not have PodGroup of scheduling.volcano.sh/v1beta1: "
        "install what brings this kind False"
    )
    eventually(lambda: status_of(cluster, "mnist").get("message") == told)
    assert client.find(cluster, CONFIG_MAPS, "other") is not None


def test_a_refusal_in_other_words_is_no_reason_to_look_at_once(loop: Loop, cluster: Cluster) -> None:
    """Webhooks and quotas may word each rejection differently. The new message is reported, but the next
    attempt comes at the requested time."""
    bad = config_map("child") | {"data": {"a": {"not": "text"}}}

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        status = {"phase": "Pending", "message": f"request {len(loop.seen)}"} if observed.refused else None
        if status and job.status.phase == "Pending":
            del status["phase"]  # a status is only what differs
        return Actions(create=(bad,), status=status, requeue_after=2.0)

    loop.start(decide)
    client.create(cluster, elastic_job())

    eventually(lambda: bool(loop.seen) and (loop.seen[-1].now - loop.seen[0].now).total_seconds() > 1.5)
    looks = sorted({observed.now for observed in loop.seen})
    assert sum((look - looks[0]).total_seconds() < 1.5 for look in looks) <= 4
    eventually(lambda: status_of(cluster, "mnist")["message"] != "request 2")


def test_deletes_this_very_object(loop: Loop, cluster: Cluster) -> None:
    """A delete applies to the observed object only. Its successor of the same name stays."""
    old = client.create(cluster, config_map("child"))
    client.delete(cluster, CONFIG_MAPS, "child")
    new = client.create(cluster, config_map("child"))

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        if job.status.message:
            return Actions()
        deletion = Deletion("v1", "ConfigMap", "child", old["metadata"]["uid"])
        return Actions(delete=(deletion,), status={"message": "done"})

    loop.start(decide)
    client.create(cluster, elastic_job())

    eventually(lambda: status_of(cluster, "mnist").get("message") == "done")
    assert new["metadata"]["uid"] == client.get(cluster, CONFIG_MAPS, "child")["metadata"]["uid"]


def test_a_time_to_live_that_was_just_removed(loop: Loop, cluster: Cluster) -> None:
    """If the user removes the time to live, a decision from an older state of the job does not delete it."""

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        if job.spec.ttl_seconds_after_finished is not None:
            client.patch(cluster, ELASTIC_JOBS, "mnist", {"spec": {"ttlSecondsAfterFinished": None}})
        return Actions()

    manifest = elastic_job()
    manifest["spec"]["ttlSecondsAfterFinished"] = 0
    client.create(cluster, manifest)
    ended = {"phase": "Succeeded", "completionTime": "2026-01-01T00:00:00Z"}
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", ended)
    loop.start(decide)
    assert loop.manager is not None

    eventually(
        lambda: (
            loop.settled()
            and (len(loop.seen) > 1 or not names_of(cluster, Scope(ELASTIC_JOBS, cluster.namespace)))
        )
    )
    assert names_of(cluster, Scope(ELASTIC_JOBS, cluster.namespace)) == ["mnist"]
    group = JobGroup(str(cluster.namespace), "mnist")
    assert loop.manager.world.find(names.API_VERSION, "ElasticJob", group, "mnist") is not None


def test_deleted_objects_are_gone_at_once(loop: Loop, cluster: Cluster) -> None:
    """The decision after a delete does not see what was deleted."""
    client.create(cluster, config_map("child"))
    deletes = 0

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        nonlocal deletes
        there = observed.find("ConfigMap", "child")
        if there is None:
            return Actions()
        deletes += 1
        return Actions(delete=(Deletion("v1", "ConfigMap", "child", there["metadata"]["uid"]),))

    loop.start(decide)
    client.create(cluster, elastic_job())

    eventually(lambda: deletes == 1)
    eventually(loop.settled)
    assert deletes == 1


def test_a_late_patch_is_decided_again(loop: Loop, cluster: Cluster) -> None:
    """A patch based on an old state is rejected by the server, and the next decision uses the new state."""

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        if "x" in job.metadata.labels:
            return Actions()
        version = "1" if len(loop.seen) == 1 else job.metadata.resource_version
        body = {"metadata": {"resourceVersion": version, "labels": {"x": "y"}}}
        return Actions(patch=(Patch(job.api_version, job.kind, job.metadata.name, body),))

    loop.start(decide)
    client.create(cluster, elastic_job())

    eventually(lambda: client.get(cluster, ELASTIC_JOBS, "mnist")["metadata"].get("labels") == {"x": "y"})
    assert len(loop.seen) >= 2


def test_a_defect_stops_only_its_job(loop: Loop, cluster: Cluster) -> None:
    """If a state machine raises, its object gets an Event and is tried again, and other jobs continue."""

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        if job.metadata.name == "broken" and len(loop.seen) < 4:
            raise ZeroDivisionError("oops")
        return Actions(status={"message": "fine"} if not job.status.message else None)

    loop.start(decide)
    broken = client.create(cluster, elastic_job("broken"))
    client.create(cluster, elastic_job("good"))

    eventually(lambda: status_of(cluster, "good").get("message") == "fine")
    eventually(lambda: status_of(cluster, "broken").get("message") == "fine")
    (event,) = events.of_object(cluster, broken)
    assert (event["type"], event["reason"]) == ("Warning", "ReconcileFailed")
    assert "ZeroDivisionError: oops" in event["message"]


def test_requeue(loop: Loop, cluster: Cluster) -> None:
    """A decision with `requeue_after` is made again after that time, although nothing changes."""

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        return Actions(requeue_after=0.05)

    loop.start(decide)
    client.create(cluster, elastic_job())

    eventually(lambda: len(loop.seen) >= 4)
    assert loop.seen[0].now < loop.seen[3].now
    assert len({observed.new_token for observed in loop.seen}) == len(loop.seen)


def test_nothing_is_written_without_leave(loop: Loop, cluster: Cluster) -> None:
    """A process that has lost its leadership writes nothing: no object, no status, no event."""
    loop.writable = False

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        return Actions(create=(config_map("child"),), status={"message": "x"})

    loop.start(decide)
    job = client.create(cluster, elastic_job())

    eventually(lambda: len(loop.seen) >= 3)
    assert client.find(cluster, CONFIG_MAPS, "child") is None
    assert status_of(cluster, "mnist") == {}
    assert events.of_object(cluster, job) == []


def test_a_deleted_job_is_no_error(loop: Loop, cluster: Cluster) -> None:
    """A write to a job that has just been deleted is dropped without a warning Event."""

    def decide(job: ElasticJob, observed: Observed) -> Actions:
        client.delete(cluster, ELASTIC_JOBS, job.metadata.name)
        body = {"metadata": {"resourceVersion": job.metadata.resource_version, "labels": {"x": "y"}}}
        patch = Patch(job.api_version, job.kind, job.metadata.name, body)
        return Actions(patch=(patch,), status={"message": "late"})

    loop.start(decide)
    gone = client.create(cluster, elastic_job())

    eventually(lambda: client.find(cluster, ELASTIC_JOBS, "mnist") is None)
    eventually(loop.settled)
    assert len(loop.seen) == 1
    assert events.of_object(cluster, gone) == []


def test_kinds_with_labels_of_their_own_see_their_own_children(cluster: Cluster) -> None:
    """Two kinds watch one resource type under different labels. Each sees its own objects and its own writes
    only."""
    other = Source(WATCHED_CONFIG_MAPS.api, lambda m: m["metadata"]["labels"]["other/job"], "other/job")
    world = ObservedCluster(
        cluster,
        NamespaceSelection.of(cluster.namespace),
        (WATCHED_CONFIG_MAPS, other),
        (),
        lambda _: None,
        lambda *_: None,
    )
    world.start()
    try:
        assert world.wait_synced(240)
        group = JobGroup(cluster.namespace, "mnist")
        ours = client.create(cluster, config_map("ours"))
        theirs = config_map("theirs")
        theirs["metadata"]["labels"] = {"other/job": "mnist"}
        theirs = client.create(cluster, theirs)
        for obj in (ours, theirs):
            world.wrote(obj)
        assert [o["metadata"]["name"] for o in world.of_group(WATCHED_CONFIG_MAPS, group)] == ["ours"]
        assert [o["metadata"]["name"] for o in world.of_group(other, group)] == ["theirs"]
        assert world.find("v1", "ConfigMap", group, "theirs") == theirs
        world.removed(theirs)
        assert world.of_group(other, group) == []
        assert world.of_group(WATCHED_CONFIG_MAPS, group) == [WATCHED_CONFIG_MAPS.keep(ours)]
    finally:
        world.stop(10)
