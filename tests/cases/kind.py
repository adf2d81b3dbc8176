"""What the tests of all kinds of jobs read of one kind; `tests.cases.kinds` has a module for each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]
Change = Callable[[Manifest], None]


@dataclass(frozen=True)
class Mistake:
    """A change that makes a kind's example invalid.

    Attributes:
        message: pattern of the model's error, which names the field.
        server: part of what an API server with the kind's definition answers; None if it accepts the
            manifest, since only the model sees the mistake.
    """

    name: str
    change: Change
    message: str
    server: str | None = ""


@dataclass(frozen=True)
class SingleRole:
    """Jobs with pods of one role.

    Attributes:
        role: as users scale it; a type of replicas whose number may change, such as Worker.
        make_spec: makes the spec of a job from the spec of its pods and their number. If the kind requires
            another type, such as a master, the spec has one pod of it besides.
    """

    role: str
    make_spec: Callable[[Manifest, int], Manifest]


@dataclass(frozen=True)
class KindCases:
    """The cases of one kind.

    Attributes:
        example: a small valid job, with each type of replicas that the kind requires. An autoscaler may
            change it if the kind has `Kind.elastic`.
        ends: the phases of a job that has succeeded and of one that has failed, as users know them.
        mistakes: changes of the example.
        detailed: a job with many fields, which the embedded cluster can run; made of
            `make_detailed_template`. Tests change its fields.
        template: the path of a pod template in `detailed`: that of the pods which a job of `installed` gets
            first.
        four_pods: the spec of a job of four pods, for benchmarks.
        installed: jobs that run in an installation; None for ElasticJob, which has tests of its own there.
    """

    example: Manifest
    ends: tuple[str, str]
    mistakes: tuple[Mistake, ...]
    detailed: Manifest
    template: tuple[str | int, ...]
    four_pods: Manifest
    installed: SingleRole | None

    @property
    def kind(self) -> str:
        """The ``kind`` of its manifests."""
        return str(self.example["kind"])


def put(path: str, value: Any) -> Change:
    """A change of one field; None removes it. The path has slashes, and indexes of lists."""

    def change(manifest: Manifest) -> None:
        *parents, last = path.split("/")
        node: Any = manifest
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        if value is None:
            del node[last]
        else:
            node[int(last) if isinstance(node, list) else last] = value

    return change


def both(*changes: Change) -> Change:
    """Several changes at once."""

    def change(manifest: Manifest) -> None:
        for part in changes:
            part(manifest)

    return change


def make_manifest(api_version: str, kind: str, name: str, **spec: Any) -> Manifest:
    """A manifest with this spec."""
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec}


def make_template(container: str) -> Manifest:
    """The template of a pod with one container of this name."""
    return {"spec": {"containers": [{"name": container, "image": "train:1"}]}}


def rename_container(pod: Manifest, name: str) -> Manifest:
    """The spec of a pod whose container has this name."""
    return {**pod, "containers": [{**pod["containers"][0], "name": name}]}


def make_detailed_template(container: str = "main") -> Manifest:
    """A pod template with many fields. Its pods sleep."""
    main = {
        "name": container,
        "image": "none",
        "command": ["sleep", "300"],
        "args": ["1"],
        "env": [
            {"name": "A", "value": "$(B)"},
            {"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ],
        "resources": {"requests": {"cpu": "10m", "memory": "8Mi"}, "limits": {"memory": "64Mi"}},
        "ports": [{"containerPort": 2222, "name": "http"}],
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp/edl-fuzzed"}],
    }
    return {
        "metadata": {"labels": {"app": "fuzzed"}, "annotations": {"note": "x"}},
        "spec": {
            "containers": [main],
            "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1Mi", "medium": ""}}],
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            "nodeSelector": {"kubernetes.io/os": "linux"},
            "tolerations": [{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
        },
    }
