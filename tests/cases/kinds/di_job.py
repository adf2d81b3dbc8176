"""The cases of DIJob."""

import copy
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

API_VERSION = "diengine.opendilab.org/v2alpha1"
CONTAINER = "di-container"
T0 = "spec/tasks/0"
MAIN = f"{T0}/template/spec/containers/0"


def task(kind: str, replicas: int = 1, **fields: Any) -> Manifest:
    """A task of one container."""
    return {"type": kind, "replicas": replicas, "template": make_template(CONTAINER), **fields}


def make_di_job(*tasks: Manifest, **spec: Any) -> Manifest:
    """A job of these tasks; without any a learner, an evaluator and two collectors."""
    chosen = tasks or (task("learner"), task("collector", 2), task("evaluator"))
    return make_manifest(API_VERSION, "DIJob", "atari", tasks=copy.deepcopy(list(chosen)), **spec)


def make_collectors(pod: Manifest, replicas: int) -> Manifest:
    """The spec of a job of collectors only."""
    template = {"spec": rename_container(pod, CONTAINER)}
    return {"tasks": [{"type": "collector", "replicas": replicas, "template": template}]}


MISTAKES = (
    Mistake("no spec", put("spec", None), "^DIJob atari: spec: required"),
    Mistake("no list of tasks", put("spec/tasks", None), "spec.tasks: required"),
    Mistake("no task", put("spec/tasks", []), "spec.tasks: "),
    Mistake("tasks no list", put("spec/tasks", {"learner": 1}), "spec.tasks: "),
    Mistake("no type", put(f"{T0}/type", None), "tasks.0.type: required"),
    Mistake("unknown type", put(f"{T0}/type", "actor"), "tasks.0.type: .*learner"),
    Mistake("zero replicas", put(f"{T0}/replicas", 0), "tasks.0.replicas"),
    Mistake("negative replicas", put(f"{T0}/replicas", -1), "tasks.0.replicas"),
    Mistake("replicas no number", put(f"{T0}/replicas", "many"), "tasks.0.replicas"),
    Mistake("too many replicas", put(f"{T0}/replicas", 10_001), "tasks.0.replicas"),
    Mistake("below the minimum", put(f"{T0}/minReplicas", 2), "tasks.0.replicas: is 1, but minReplicas is 2"),
    Mistake(
        "above the maximum",
        put("spec/tasks/1/maxReplicas", 1),
        "tasks.1.replicas: is 2, but maxReplicas is 1",
    ),
    Mistake(
        "min above max",
        put(T0, task("learner", minReplicas=3, maxReplicas=2)),
        "tasks.0.minReplicas: is 3, but maxReplicas is 2",
    ),
    Mistake("minimum of zero", put(f"{T0}/minReplicas", 0), "tasks.0.minReplicas"),
    Mistake(
        "two learners",
        put("spec/tasks", [task("learner"), task("learner")]),
        "tasks.1.type: tasks.0 is the job's learner already",
    ),
    Mistake("no name", put("spec/tasks", [task("none")]), "tasks.0.name: a task of type none needs one"),
    Mistake(
        "two tasks of a name",
        put("spec/tasks", [task("none", name="a"), task("none", name="a")]),
        "tasks.1.name: 'a' is the name of tasks.0",
    ),
    Mistake(
        "named as another by default",
        put("spec/tasks", [task("learner"), task("none", name="learner")]),
        "tasks.1.name: 'learner'",
    ),
    Mistake(
        "a name that no host can have",
        put(f"{T0}/name", "My_Learner"),
        "tasks.0.name: 'My_Learner' must be",
        server=None,
    ),
    Mistake("too long a name", put(f"{T0}/name", "l" * 60), "tasks.0.name"),
    Mistake(
        "no template",
        put(f"{T0}/template", None),
        "tasks.0.template.spec.containers: at least one",
        server=None,
    ),
    Mistake(
        "no image",
        put(f"{MAIN}/image", None),
        "containers.0.image: required",
        "containers[0].image: Required",
    ),
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
    Mistake("misspelt field", put(f"{T0}/replica", 2), "unknown field; did you mean 'replicas'"),
    Mistake("a field of version 1.0", put("spec/group", "g"), "spec.group: unknown field"),
    Mistake("unknown priority", put("spec/priority", "low"), "spec.priority"),
    Mistake("unknown policy", put("spec/cleanPodPolicy", "Some"), "spec.cleanPodPolicy"),
    Mistake("negative limit", put("spec/backoffLimit", -1), "spec.backoffLimit"),
    Mistake("neither true nor false", put("spec/preemptible", "perhaps"), "spec.preemptible"),
    Mistake(
        "volume without a name",
        put("spec/volumes", [{"emptyDir": {}}]),
        "spec.volumes.0.name: required",
        server=None,
    ),
    Mistake(
        "two volumes of a name",
        put("spec/volumes", [{"name": "v"}, {"name": "v"}]),
        "spec.volumes: there is more than one",
        server=None,
    ),
    Mistake("capitals in the name", put("metadata/name", "Atari"), "metadata.name: 'Atari'"),
    Mistake("too long a name of the job", put("metadata/name", "a" * 61), "metadata.name: has 61 characters"),
    Mistake(
        "too long names of pods",
        put("metadata/name", "a" * 55),
        "tasks.1.name: pods would be named",
        server=None,
    ),
    Mistake(
        "unknown version", put("apiVersion", "diengine.opendilab.org/v1alpha1"), "apiVersion", server=None
    ),
)

CASES = KindCases(
    example=make_di_job(task("learner"), task("collector", 2, minReplicas=1, maxReplicas=4)),
    ends=("Succeeded", "Failed"),
    mistakes=MISTAKES,
    detailed=make_manifest(
        API_VERSION, "DIJob", "x",
        priority="normal",
        tasks=[
            {
                "type": "learner", "replicas": 1, "minReplicas": 1, "maxReplicas": 2,
                "template": make_detailed_template(),
            }
        ],
    ),
    template=("spec", "tasks", 0, "template"),
    four_pods={"tasks": [task("learner"), task("collector", 2), task("evaluator")]},
    installed=SingleRole("collector", make_collectors),
)  # fmt: skip
