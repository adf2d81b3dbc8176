"""The cases of PyTorchJob."""

from typing import Any

from tests.cases.kind import (
    KindCases,
    Manifest,
    Mistake,
    SingleRole,
    make_detailed_template,
    make_manifest,
    make_template,
    put,
    rename_container,
)

API_VERSION = "kubeflow.org/v1"
CONTAINER = "pytorch"
SPECS = "spec/pytorchReplicaSpecs"
POLICY = "spec/elasticPolicy"


def make_pytorch_job(
    *, elastic: Manifest | None = None, policies: Manifest | None = None, compat: str = "", **types: Any
) -> Manifest:
    """A job; `types` gives for each type its replicas, or (replicas, restart policy)."""
    specs = {}
    for replica_type, size in (types or {"Master": 1, "Worker": 2}).items():
        replicas, policy = size if isinstance(size, tuple) else (size, "OnFailure")
        template = make_template(CONTAINER)
        specs[replica_type] = {"replicas": replicas, "restartPolicy": policy, "template": template}
    job = make_manifest(
        API_VERSION, "PyTorchJob", "mnist", pytorchReplicaSpecs=specs, runPolicy=policies or {}
    )
    if compat:
        job["metadata"]["annotations"] = {"elastic.iml.github.io/pytorchjob-compat": compat}
    if elastic is not None:
        job["spec"]["elasticPolicy"] = elastic
    return job


def make_workers(pod: Manifest, replicas: int) -> Manifest:
    """The spec of a job without a master."""
    template = {"spec": rename_container(pod, CONTAINER)}
    workers = {"replicas": replicas, "restartPolicy": "ExitCode", "template": template}
    return {"pytorchReplicaSpecs": {"Worker": workers}}


MISTAKES = (
    Mistake("no replicas", put(SPECS, {}), "pytorchReplicaSpecs"),
    Mistake("unknown type", put(f"{SPECS}/PS", {}), "types are Master, Worker", "types are Master, Worker"),
    Mistake("two masters", put(f"{SPECS}/Master/replicas", 2), "a job has one Master"),
    Mistake("zero workers", put(f"{SPECS}/Worker/replicas", 0), "Worker.replicas"),
    Mistake("restart policy", put(f"{SPECS}/Worker/restartPolicy", "Sometimes"), "restartPolicy"),
    Mistake("processes no number", put("spec/nprocPerNode", "all"), "nprocPerNode"),
    Mistake("no process", put("spec/nprocPerNode", "0"), "nprocPerNode"),
    Mistake("no worker needed", put(f"{POLICY}/minReplicas", 0), "minReplicas"),
    Mistake("bounds", put(POLICY, {"minReplicas": 3, "maxReplicas": 2}), "larger than maxReplicas"),
    Mistake("fewer workers than bounds", put(f"{POLICY}/minReplicas", 3), "from 3 to 4"),
    Mistake("more workers than bounds", put(f"{POLICY}/maxReplicas", 1), "from 1 to 1"),
    Mistake("unknown backend", put(f"{POLICY}/rdzvBackend", "zookeeper"), "rdzvBackend"),
    Mistake("no port", put(f"{POLICY}/rdzvPort", 70_000), "rdzvPort"),
    Mistake("option without a key", put(f"{POLICY}/rdzvConf", [{"value": "x"}]), "rdzvConf"),
    Mistake("negative restarts", put(f"{POLICY}/maxRestarts", -1), "maxRestarts"),
    Mistake("capitals in the name", put("metadata/name", "M"), "metadata.name"),
    Mistake("name too long", put("metadata/name", "m" * 52), "metadata.name"),
    Mistake(
        "a version of pytorch-operator", put("apiVersion", "kubeflow.org/v1beta2"), "apiVersion", server=None
    ),
    Mistake(
        "compat",
        put("metadata/annotations", {"elastic.iml.github.io/pytorchjob-compat": "bugs"}),
        "'bugs' is unknown",
        server=None,
    ),
)

CASES = KindCases(
    example=make_pytorch_job(Worker=(2, "ExitCode"), elastic={"minReplicas": 1, "maxReplicas": 4}),
    ends=("Succeeded", "Failed"),
    mistakes=MISTAKES,
    detailed=make_manifest(
        API_VERSION, "PyTorchJob", "x",
        pytorchReplicaSpecs={"Worker": {"replicas": 1, "template": make_detailed_template(CONTAINER)}},
        nprocPerNode="2",
        elasticPolicy={
            "minReplicas": 1, "maxReplicas": 2, "rdzvBackend": "c10d", "rdzvPort": 29400,
            "rdzvConf": [{"key": "timeout", "value": "60"}], "maxRestarts": 1,
            "metrics": [{"type": "Resource"}],
        },
    ),
    template=("spec", "pytorchReplicaSpecs", "Worker", "template"),
    four_pods={
        "pytorchReplicaSpecs": {
            "Master": {"template": make_template(CONTAINER)},
            "Worker": {"replicas": 3, "template": make_template(CONTAINER)},
        }
    },
    installed=SingleRole("worker", make_workers),
)  # fmt: skip
