"""The cases of TFJob."""

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
CONTAINER = "tensorflow"
WORKER = "spec/tfReplicaSpecs/Worker"
MAIN = f"{WORKER}/template/spec/containers/0"


def make_tf_job(*, policies: Manifest | None = None, compat: str = "", **types: Any) -> Manifest:
    """A job; `types` gives for each type its replicas, or (replicas, restart policy)."""
    specs = {}
    for replica_type, size in (types or {"PS": 1, "Worker": 2}).items():
        replicas, policy = size if isinstance(size, tuple) else (size, "Never")
        template = make_template(CONTAINER)
        specs[replica_type] = {"replicas": replicas, "restartPolicy": policy, "template": template}
    job = make_manifest(API_VERSION, "TFJob", "mnist", tfReplicaSpecs=specs, runPolicy=policies or {})
    if compat:
        job["metadata"]["annotations"] = {"elastic.iml.github.io/tfjob-compat": compat}
    return job


def make_workers(pod: Manifest, replicas: int) -> Manifest:
    """The spec of a job of workers only."""
    template = {"spec": rename_container(pod, CONTAINER)}
    workers = {"replicas": replicas, "restartPolicy": "ExitCode", "template": template}
    return {"tfReplicaSpecs": {"Worker": workers}}


MISTAKES = (
    Mistake("no replicas", put("spec/tfReplicaSpecs", {}), "tfReplicaSpecs"),
    Mistake("no map of replicas", put("spec/tfReplicaSpecs", None), "spec.tfReplicaSpecs"),
    Mistake("no spec", put("spec", None), "spec"),
    Mistake("unknown type", put("spec/tfReplicaSpecs/Wrker", {}), "Wrker", "types are Chief"),
    Mistake("zero replicas", put(f"{WORKER}/replicas", 0), "Worker.replicas"),
    Mistake("negative replicas", put(f"{WORKER}/replicas", -1), "Worker.replicas"),
    Mistake("replicas no number", put(f"{WORKER}/replicas", "many"), "Worker.replicas"),
    Mistake("too many replicas", put(f"{WORKER}/replicas", 10_001), "Worker.replicas"),
    Mistake("no template", put(f"{WORKER}/template", None), "Worker.template.spec.containers", server=None),
    Mistake("no container", put(f"{WORKER}/template/spec/containers", []), "containers", "at least 1 items"),
    Mistake("no image", put(f"{MAIN}/image", None), "containers.0.image", "containers[0].image: Required"),
    Mistake("no name", put(f"{MAIN}/name", ""), "containers.0.name", server=None),
    Mistake(
        "env no list",
        put(f"{MAIN}/env", {"A": "b"}),
        "containers.0.env",
        "containers[0].env in body must be of type array",
    ),
    Mistake(
        "number in env",
        put(f"{MAIN}/env", [{"name": "RATE", "value": 0.1}]),
        r"containers\.0\.env\.0\.value: must be a string: write 0\.1 in quotes",
        "env[0].value in body must be of type string",
    ),
    Mistake(
        "number in command",
        put(f"{MAIN}/command", ["sleep", 300]),
        r"containers\.0\.command\.1: must be a string: write 300 in quotes",
        "command[1] in body must be of type string",
    ),
    Mistake(
        "number in a node selector",
        put(f"{MAIN.rpartition('/containers')[0]}/nodeSelector", {"gpus": 8}),
        r"nodeSelector\.gpus: must be a string: write 8 in quotes",
        server=None,
    ),
    Mistake("no quantity", put(f"{MAIN}/resources", {"limits": {"cpu": "much"}}), "limits.cpu", server=None),
    Mistake("unknown policy", put(f"{WORKER}/restartPolicy", "Sometimes"), "Worker.restartPolicy"),
    Mistake(
        "policy misplaced",
        put(f"{WORKER}/template/spec/restartPolicy", "ExitCode"),
        "template.spec.restartPolicy",
        server=None,
    ),
    Mistake("misspelt field", put(f"{WORKER}/replica", 1), "did you mean 'replicas'"),
    Mistake("clean-up policy", put("spec/runPolicy/cleanPodPolicy", "Some"), "runPolicy.cleanPodPolicy"),
    Mistake("negative limit", put("spec/runPolicy/backoffLimit", -1), "runPolicy.backoffLimit"),
    Mistake("deadline no number", put("spec/runPolicy/activeDeadlineSeconds", "1h"), "activeDeadlineSeconds"),
    Mistake("negative TTL", put("spec/runPolicy/ttlSecondsAfterFinished", -5), "ttlSecondsAfterFinished"),
    Mistake("unknown manager", put("spec/runPolicy/managedBy", "me"), "runPolicy.managedBy"),
    Mistake(
        "gang too large",
        put("spec/runPolicy/schedulingPolicy", {"minAvailable": 4}),
        "minAvailable",
        server=None,
    ),
    Mistake("unknown success policy", put("spec/successPolicy", "Any"), "spec.successPolicy"),
    Mistake("capitals in the name", put("metadata/name", "Mnist"), "metadata.name"),
    Mistake("name too long", put("metadata/name", "m" * 49), "metadata.name"),
    Mistake("unknown version", put("apiVersion", "kubeflow.org/v2"), "apiVersion", server=None),
    Mistake(
        "compat",
        put("metadata/annotations", {"elastic.iml.github.io/tfjob-compat": "bugs"}),
        "'bugs' is unknown",
        server=None,
    ),
)

CASES = KindCases(
    example=make_tf_job(PS=1, Worker=(2, "ExitCode")),
    ends=("Succeeded", "Failed"),
    mistakes=MISTAKES,
    detailed=make_manifest(
        API_VERSION, "TFJob", "x",
        tfReplicaSpecs={"Worker": {"replicas": 1, "template": make_detailed_template(CONTAINER)}},
        runPolicy={"cleanPodPolicy": "All", "activeDeadlineSeconds": 60, "backoffLimit": 1},
    ),
    template=("spec", "tfReplicaSpecs", "Worker", "template"),
    four_pods={
        "tfReplicaSpecs": {
            "PS": {"replicas": 1, "template": make_template(CONTAINER)},
            "Worker": {"replicas": 3, "template": make_template(CONTAINER)},
        }
    },
    installed=SingleRole("worker", make_workers),
)  # fmt: skip
