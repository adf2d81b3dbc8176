"""A valid job, wrong manifests, and what the error of each says."""

import copy
import json
from typing import Any

from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube.resources import Object

DEPTH = 9
BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, DEPTH)
)


def job(name: str = "mnist", **spec: Any) -> Object:
    """A valid job of one worker that only waits."""
    container = {"name": "main", "image": "none", "command": ["sleep", "300"]}
    roles = {"worker": {"replicas": 1, "template": {"spec": {"containers": [container]}}}}
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicaSpecs": roles, **spec},
    }


def wrong(path: str, value: Any) -> Object:
    """A valid job with one field changed or, by None, removed."""
    manifest = copy.deepcopy(job())
    *parents, last = path.split(".")
    place = manifest
    for step in parents:
        place = place.setdefault(step, {})
    if value is None:
        del place[last]
    else:
        place[last] = value
    return manifest


MANIFESTS: dict[str, tuple[str | Object, str]] = {
    "no YAML": ("a: [", "not valid YAML: while parsing a flow"),
    "no text": ("\0", "not valid YAML: unacceptable character"),
    "two documents": ("a: 1\n---\nb: 2", "the manifest of one job is required, this has 2 documents"),
    "nothing": ("# nothing\n", "this has 0 documents"),
    "a list": ("- a\n", "this has 1 documents of type list"),
    "a bomb of aliases": (BOMB, "more than 200000 values; use fewer YAML aliases"),
    "a python object": ("a: !!python/object/apply:os.system [id]\n", "could not determine a constructor"),
    "bytes": (
        "kind: ElasticJob\nmetadata: {labels: {day: !!binary aGk=}}\n",
        "metadata.labels.day: \"b'hi'\" is read as a bytes, which",
    ),
    "no number": ("a: {b: 1e999}", "a.b: 'inf' is read as a float, which"),
    "nested without end": ("[" * 50_000, "line 1 is nested deeper than 100 levels"),
    "no kind": (wrong("kind", None), "kind"),
    "another kind": (wrong("kind", "Pod"), "'Pod'"),
    "a plan as a job": (wrong("kind", "ScalePlan"), "a ScalePlan is not a job"),
    "unknown field": (
        wrong("spec.replicaSpec", {}),
        "spec.replicaSpec: unknown field; did you mean 'replicaSpecs'?",
    ),
    "unknown field below": (
        wrong("spec.replicaSpecs.worker.replica", 1),
        "spec.replicaSpecs.worker.replica: unknown field; did you mean 'replicas'?",
    ),
    "wrong type": (
        wrong("spec.replicaSpecs.worker.replicas", "three"),
        "spec.replicaSpecs.worker.replicas: ",
    ),
    "negative count": (wrong("spec.replicaSpecs.worker.replicas", -1), "spec.replicaSpecs.worker.replicas: "),
    "unknown role": (wrong("spec.replicaSpecs.driver", {"replicas": 1}), "spec.replicaSpecs"),
    "no roles": (wrong("spec.replicaSpecs", None), "spec.replicaSpecs: "),
    "no containers": (
        wrong("spec.replicaSpecs.worker.template", {"spec": {}}),
        "spec.replicaSpecs.worker.template.spec.containers: at least one container is needed",
    ),
    "an endless quantity": (
        wrong("spec.replicaSpecs.worker.template.spec.containers",
              [{"name": "main", "image": "i", "resources": {"limits": {"cpu": "1e999"}}}]),
        "template.spec.containers.0.resources.limits.cpu: '1e999'",
    ),
    "a bottomless template": (
        wrong("spec.replicaSpecs.worker.template.spec.nest", json.loads('{"a":' * 70 + "1" + "}" * 70)),
        "spec.replicaSpecs.worker.template.spec: is nested deeper than 64 levels",
    ),
    "a path as a name": (
        wrong("metadata.name", "../../etc"),
        "metadata.name: '../../etc' must be lower-case",
    ),
    "a name of two lines": (wrong("metadata.name", "mnist\n"), "metadata.name: "),
    "a reserved variable": (
        wrong("spec.envs", {names.ENV_JOB_TOKEN: {"value": "x"}}),
        f"spec.envs.{names.ENV_JOB_TOKEN}: is set by the controller",
    ),
    "metadata is text": (wrong("metadata", "mnist"), "metadata: must be a map"),
}  # fmt: skip
"""What is submitted, and what its error says: the field, and what would be right."""
OF_FILES = {
    "two documents": "'' is no kind of this package",
    "nothing": "job.yaml: contains no object",
    "a list": "job.yaml, document 1: an object is required",
}
"""What the command line says instead: its files may have any number of jobs."""


def text_of(manifest: str | Object) -> str:
    """As a file has it."""
    return manifest if isinstance(manifest, str) else json.dumps(manifest)
