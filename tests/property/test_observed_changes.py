"""Laws of what wakes the controller, for all kinds: a change that alters a decision asks for one."""

import copy
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest

from edl_workflows.core.jobs.actions import Actions, Manifest, Observed
from edl_workflows.core.jobs.elastic_job.awaited_steps import annotation_of
from edl_workflows.core.jobs.kind import Kind, Source
from edl_workflows.core.jobs.kinds import KINDS, kind_of, watched_sources
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.pod_state import OWN_CONTAINER
from tests.cases.kinds import KIND_CASES
from tests.jobs_namespace import JobsNamespace
from tests.unit.services.controller.support import auto_plan

TIME = "2026-01-01T00:00:00Z"
REPORTED = {
    "progress": {"step": 7, "records": 9, "speed": 1.5, "metrics": {"loss": 0.1}, "time": TIME},
    "history": [{"time": TIME, "step": 7, "nodes": {"worker": 1}}],
    "goodput": {"ratio": 0.5, "seconds": {"training": 3}, "cause": "training", "time": TIME},
    "checkpoint": {"uri": "file:///m", "step": 7, "time": TIME, "saveSeconds": 2.0},
    "restarts": {"counts": {"Killed": 1}, "recent": [{"time": TIME, "subject": "w", "cause": "Killed"}]},
    "parameterServers": {"changes": "Any"},
    "hang": {"time": TIME, "stacks": []},
    "warnings": ["slow"],
    "result": "1",
    "failure": {"reason": "NodeFailed", "message": "bad"},
}
"""What a master reports."""
ENDED = {"name": "main", "state": {"terminated": {"exitCode": 3, "finishedAt": TIME, "message": "bad"}}}
ADDED: tuple[Manifest, ...] = (
    {"metadata": {"deletionTimestamp": TIME, "deletionGracePeriodSeconds": 0}},
    {"metadata": {"labels": {"x": "y"}}},
    {"metadata": {"annotations": {OWN_CONTAINER: "main", names.TAKE_OVER_ANNOTATION: "true"}}},
    {"metadata": {"ownerReferences": []}},
    {"status": {"phase": "Running"}},
    {"status": {"phase": "Failed", "containerStatuses": [ENDED]}},
    {"status": {"phase": "Failed", "reason": "OutOfcpu", "message": "full"}},
    {"status": {"phase": "Failed", "initContainerStatuses": [ENDED]}},
    {"status": {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}},
    {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    {"status": {"replacements": {"worker-0": {"count": 9, "time": TIME}}}},
    {"status": {"masterRestarts": 9}},
    {"spec": {"suspend": True}},
)
"""Changes that no leaf of an object has."""


def _grow(kind: str) -> JobsNamespace:
    """A job of a kind whose pods run."""
    world = JobsNamespace()
    name = world.add(KIND_CASES[kind].example)["metadata"]["name"]
    world.settle()
    if kind == "ElasticJob":
        world.add(auto_plan(name, 0, 1))
        world.settle()
        world.edit(kind, name, {"status": REPORTED})
    if kind == "DIJob":
        world.edit(kind, name, {"status": {"profilings": {"maxProfiledReplicas": 1}}})
    for pod in [name for object_kind, name in world.objects if object_kind == "Pod"]:
        world.set_pod(pod, "Running")
    world.settle()
    return world


def _lose_pods(world: JobsNamespace) -> None:
    """One pod fails, and its job is not decided about yet."""
    first = min(name for object_kind, name in world.objects if object_kind == "Pod")
    world.set_pod(first, "Failed", 137)


def _suspend(world: JobsNamespace) -> None:
    for object_kind, name in list(world.objects):
        kind = next((kind for kind in KINDS if kind.name == object_kind and kind.view), None)
        if kind is not None:
            world.edit(object_kind, name, {"spec": kind.suspension(suspend=True)})


def _decide(
    world: JobsNamespace, kind: Kind, manifest: Manifest, changed: Manifest, *, keep: bool
) -> Actions:
    """The decision about an object after one of the objects has changed, from whole objects or from those
    that the cache keeps."""
    objects: dict[str, list[Manifest]] = {}
    for source in kind.observes:
        own = [
            changed if _key(obj) == _key(changed) else obj
            for (object_kind, _), obj in world.objects.items()
            if object_kind == source.api.kind
        ]
        own = [obj for obj in own if source.job_of(obj) == kind.source.job_of(manifest)]
        objects[source.api.kind] = [source.keep(obj) for obj in own] if keep else own
    subject = changed if _key(manifest) == _key(changed) else manifest
    subject = kind.source.keep(subject) if keep else copy.deepcopy(subject)
    return kind.decide(subject, Observed(world.now, objects, new_token="t" * 32, settings=world.settings))


def _key(obj: Manifest) -> tuple[str, str]:
    return obj["kind"], obj["metadata"]["name"]


def _changes(obj: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The object with each leaf of its metadata and status, and of a pod's spec, changed, with each field of
    these removed, and with the changes of `ADDED`."""
    read = ("metadata", "status", "spec") if obj["kind"] == "Pod" else ("metadata", "status")
    for path in _leaves({part: obj[part] for part in read if part in obj}, ()):
        if path != ("metadata", "resourceVersion"):
            changed = copy.deepcopy(obj)
            node: Any = changed
            for part in path[:-1]:
                node = node[part]
            node[path[-1]] = _alter(node[path[-1]])
            yield ".".join(map(str, path)), changed
    for part in read:
        for field in obj.get(part, {}).keys() - {"name", "namespace", "uid", "resourceVersion", "containers"}:
            changed = copy.deepcopy(obj)
            del changed[part][field]
            yield f"{part}.{field}.", changed
    for addition in ADDED:
        changed = copy.deepcopy(obj)
        for part, fields in addition.items():
            changed[part] = {**(changed.get(part) or {}), **fields}
        yield str(addition), changed


def _alter(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    try:
        return (datetime.fromisoformat(value) + timedelta(seconds=9)).isoformat()
    except ValueError:
        return f"{value}x"


def _leaves(value: Any, path: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        if isinstance(part, dict | list) and part:
            yield from _leaves(part, (*path, key))
        elif not isinstance(part, dict | list):
            yield (*path, key)


STAGES = {"running": lambda _world: None, "losing a pod": _lose_pods, "suspended": _suspend}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("kind", [kind.name for kind in KINDS if kind.view is not None])
def test_change_that_alters_a_decision_asks_for_one(kind: str, stage: str) -> None:
    """For each leaf of each object that decisions see: if another value leads to another decision, its event
    wakes the controller, and the decision from what the cache keeps is the one from whole objects."""
    world = _grow(kind)
    STAGES[stage](world)
    checked = 0
    for (object_kind, _), obj in world.objects.items():
        for source in [source for source in watched_sources() if source.api.kind == object_kind]:
            if source.selects(obj) and source.job_of(obj):
                checked += _check(world, source, obj)
    assert checked > 5


def _check(world: JobsNamespace, source: Source, obj: dict[str, Any]) -> int:
    """Check all changes of an object; return how many alter a decision."""
    altering = 0
    subjects = [
        (kind, manifest)
        for kind in KINDS
        if source in (kind.source, *kind.observes)
        for (object_kind, _), manifest in world.objects.items()
        if object_kind == kind.name
    ]
    for kind, manifest in subjects:
        before = _decide(world, kind, manifest, obj, keep=True)
        assert before == _decide(world, kind, manifest, obj, keep=False)
        for path, changed in _changes(obj):
            if source.job_of(changed) != source.job_of(obj) or _is_silent(source, path):
                continue
            after = _decide(world, kind, manifest, changed, keep=False)
            if after != before:
                altering += 1
                asks = source.asks_for_decision(source.keep(changed), source.keep(obj))
                assert asks, f"{kind.name}: {source.api.kind} {path}"
                assert _decide(world, kind, manifest, changed, keep=True) == after, path
    return altering


def _is_silent(source: Source, path: str) -> bool:
    """Whether a change is of the last checkpoint, whose time is read when pods are told to end."""
    return source is kind_of("ElasticJob").source and path.startswith("status.checkpoint.")


def test_profilings_ask_for_nothing() -> None:
    """The allocator takes the profilings of DIJobs in its next round, so their reports wake nobody."""
    source = kind_of("DIJob").source
    job = {"metadata": {"name": "a"}, "status": {"phase": "Running"}}
    later = {"metadata": {"name": "a"}, "status": {"phase": "Running", "profilings": {"a": 1}}}

    assert not source.asks_for_decision(source.keep(later), source.keep(job))
    assert source.keep(later)["status"]["profilings"] == {"a": 1}


@pytest.mark.parametrize("field", sorted(REPORTED.keys() - {"warnings", "failure"}))
def test_report_of_a_master_asks_for_nothing(field: str) -> None:
    """What only people and pipelines read of a master's report wakes nobody, whether it comes or changes."""
    source = kind_of("ElasticJob").source
    world = _grow("ElasticJob")
    job = next(obj for (kind, _), obj in world.objects.items() if kind == "ElasticJob")
    without = copy.deepcopy(job)
    del without["status"][field]
    without["metadata"] |= {"resourceVersion": "1", "managedFields": [{"manager": "master"}]}

    assert not source.asks_for_decision(source.keep(job), source.keep(without))


@pytest.mark.parametrize("before", [{}, {"annotations": {}}, {"annotations": {"note": "mine"}}])
def test_waiters_of_a_job_ask_for_nothing(before: dict[str, Any]) -> None:
    """Who waits for a step of a job tells its master, and wakes nobody else, whether it comes or goes, and
    whether its annotations are then an empty map or none."""
    source = kind_of("ElasticJob").source
    kept = before.get("annotations", {})
    job = {"metadata": {"name": "a", **before}}
    waited_for = {"metadata": {"name": "a", "annotations": {**kept, annotation_of("a pipeline"): "100"}}}
    left = {"metadata": {"name": "a", "annotations": kept}}

    assert not source.asks_for_decision(source.keep(waited_for), source.keep(job))
    assert not source.asks_for_decision(source.keep(left), source.keep(waited_for))
    assert not source.asks_for_decision(source.keep(left), source.keep(job))


def test_unknown_report_of_a_newer_master_asks_for_nothing() -> None:
    """A field of the status that this version does not know is progress, too."""
    source = kind_of("ElasticJob").source
    job = {"metadata": {"name": "a"}, "status": {"phase": "Running", "live": {"step": 1}}}
    later = {"metadata": {"name": "a"}, "status": {"phase": "Running", "live": {"step": 2}}}

    assert not source.asks_for_decision(source.keep(later), source.keep(job))
