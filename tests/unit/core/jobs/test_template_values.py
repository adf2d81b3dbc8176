"""Pod templates with values of wrong types, for every kind of job that has templates."""

import copy
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.kinds import kind_of
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


def _container(template: dict[str, Any]) -> dict[str, Any]:
    return cast("dict[str, Any]", template["spec"]["containers"][0])


WRONG_TYPES: tuple[tuple[str, Callable[[dict[str, Any]], Any], str], ...] = (
    (
        "number in env",
        lambda t: _container(t).update(env=[{"name": "RATE", "value": 0.1}]),
        "spec.containers.0.env.0.value: must be a string: write 0.1 in quotes",
    ),
    (
        "boolean in env of an init container",
        lambda t: t["spec"]["initContainers"][0].update(env=[{"name": "A", "value": True}]),
        "spec.initContainers.0.env.0.value: must be a string: write true in quotes",
    ),
    (
        "number in command",
        lambda t: _container(t).update(command=["python", "train.py", 3]),
        "spec.containers.0.command.2: must be a string: write 3 in quotes",
    ),
    (
        "number in args",
        lambda t: _container(t).update(args=[1.0]),
        "spec.containers.0.args.0: must be a string: write 1.0 in quotes",
    ),
    (
        "text as args",
        lambda t: _container(t).update(args="--rate 1"),
        "spec.containers.0.args: must be a list",
    ),
    (
        "fraction for an integer",
        lambda t: t["spec"].update(terminationGracePeriodSeconds=30.0),
        "spec.terminationGracePeriodSeconds: must be an integer (got 30.0)",
    ),
    (
        "text for a boolean",
        lambda t: t["spec"].update(hostNetwork="true"),
        "spec.hostNetwork: must be true or false (got 'true')",
    ),
    (
        "number in a node selector",
        lambda t: t["spec"].update(nodeSelector={"gpus": 8}),
        "spec.nodeSelector.gpus: must be a string: write 8 in quotes",
    ),
    (
        "list of taints",
        lambda t: t["spec"].update(tolerations={"key": "gpu"}),
        "spec.tolerations: must be a list",
    ),
    (
        "key of a volume",
        lambda t: t["spec"].update(volumes=[{"name": "v", "emptyDir": {"sizeLimit": "1 GB"}}]),
        "spec.volumes.0.emptyDir.sizeLimit: '1 GB' is not a Kubernetes quantity",
    ),
)


@pytest.mark.parametrize(
    ("change", "message"), [case[1:] for case in WRONG_TYPES], ids=[c[0] for c in WRONG_TYPES]
)
@pytest.mark.parametrize("kind", KIND_CASES)
def test_a_value_of_another_type_is_refused_with_its_path(
    kind: str, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    """What the API server would refuse in each pod is refused in the job, with the path that the user
    wrote."""
    job = make_job(KIND_CASES[kind])
    change(at(job, KIND_CASES[kind].template))
    place = ".".join(map(str, KIND_CASES[kind].template))

    with pytest.raises(ManifestError) as caught:
        kind_of(kind).model.parse(job)

    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{place}.{message}")


@pytest.mark.parametrize("kind", KIND_CASES)
def test_values_that_the_api_server_accepts(kind: str) -> None:
    """Absent values, numbers as quantities, and ports by number and name are accepted."""
    job = make_job(KIND_CASES[kind])
    template = at(job, KIND_CASES[kind].template)
    template["spec"] |= {"nodeSelector": None, "terminationGracePeriodSeconds": 30, "unknownField": 1}
    _container(template).update(
        env=[{"name": "EMPTY", "value": None}, {"name": "N", "value": "1"}],
        command=["python"],
        args=None,
        resources={"limits": {"cpu": 1.5, "memory": 10**9}},
        readinessProbe={"httpGet": {"port": 80}, "periodSeconds": 5},
        startupProbe={"httpGet": {"port": "http"}},
    )

    kind_of(kind).model.parse(job)


@pytest.mark.parametrize(
    ("kind", "spec", "message"),
    [
        pytest.param(
            "ElasticJob",
            {"envs": {"A": {"valueFrom": {"secretKeyRef": {"name": "s", "key": 1}}}}},
            "spec.envs.A.valueFrom.secretKeyRef.key: must be a string: write 1 in quotes",
            id="a variable of all roles",
        ),
        pytest.param(
            "DIJob",
            {"volumes": [{"name": "v", "hostPath": {"path": 1}}]},
            "spec.volumes.0.hostPath.path: must be a string: write 1 in quotes",
            id="a volume of all tasks",
        ),
        pytest.param(
            "TrainingJob",
            {"volumes": [{"name": "v", "nfs": {"server": "s", "path": "/", "readOnly": "yes"}}]},
            "spec.volumes.0.nfs.readOnly: must be true or false (got 'yes')",
            id="a volume of all roles",
        ),
        pytest.param(
            "TrainingJob",
            {
                "volumes": [{"name": "v", "emptyDir": {}}],
                "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": 1}],
            },
            "spec.volumeMounts.0.subPath: must be a string: write 1 in quotes",
            id="a mount of all roles",
        ),
    ],
)
def test_parts_of_pods_outside_of_templates(kind: str, spec: dict[str, Any], message: str) -> None:
    """What a job gives to the pods of all roles is checked like its templates."""
    job = copy.deepcopy(KIND_CASES[kind].example)
    job["spec"] |= spec

    with pytest.raises(ManifestError) as caught:
        kind_of(kind).model.parse(job)

    assert [str(problem) for problem in caught.value.problems] == [message]
