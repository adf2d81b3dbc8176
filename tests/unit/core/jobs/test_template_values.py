"""Pod templates with values of wrong types, for every kind of job that has templates."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cases.kind import KindCases
from tests.cases.kinds import KIND_CASES
from tests.jobs_namespace import JobsNamespace

VALUES: tuple[Any, ...] = (
    None, True, 0, -1, 1.5, 1e22, 2**63, "", "x", [], [1], ["x"], [None], [[]], [{}], [{"name": 1}],
    [{"name": "x"}], {}, {"a": 1}, {"name": "x"},
)  # fmt: skip
_MORE: dict[str, Any] = {
    "initContainers": [
        {
            "name": "first", "image": "train:1", "restartPolicy": "Always",
            "env": [{"name": "A", "value": "b"}], "resources": {"requests": {"cpu": "1"}},
        }
    ],
    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
        "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}],
    }}},
    "imagePullSecrets": [{"name": "registry"}],
    "securityContext": {"runAsNonRoot": True},
}  # fmt: skip


def at(value: Any, path: tuple[Any, ...]) -> Any:
    """What stands at a path."""
    for key in path:
        value = value[key]
    return value


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of a value, and of all that stands in it."""
    yield path
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in below:
        yield from paths(one, (*path, key))


def make_job(cases: KindCases) -> dict[str, Any]:
    """A job whose template has all fields that a controller reads or extends."""
    job = copy.deepcopy(cases.detailed)
    template = at(job, cases.template)
    template["spec"] |= copy.deepcopy(_MORE)
    template["spec"]["containers"][0]["securityContext"] = {"readOnlyRootFilesystem": True}
    return job


@pytest.mark.parametrize("kind", KIND_CASES)
def test_no_value_in_a_template_stops_the_controller(kind: str) -> None:
    """Whatever stands in a pod template, the controller decides about the job: it creates pods, or the job
    says in its status why there are none."""
    cases = KIND_CASES[kind]
    job, place = make_job(cases), cases.template
    for path in paths(at(job, place)):
        for value in VALUES:
            changed = copy.deepcopy(job)
            at(changed, (*place, *path)[:-1])[(*place, *path)[-1]] = copy.deepcopy(value)
            namespace = JobsNamespace()
            namespace.add(changed)
            namespace.settle()

            pods = [name for what, name in namespace.objects if what == "Pod"]
            status = namespace.objects[kind, "x"].get("status") or {}
            assert pods or status.get("reason") or status.get("message"), (path, value)
