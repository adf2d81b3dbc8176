"""The cases of TrainingJob."""

import shlex
from typing import Any

from tests.cases.kind import (
    KindCases,
    Manifest,
    Mistake,
    SingleRole,
    both,
    make_detailed_template,
    make_manifest,
    put,
)

API_VERSION = "paddlepaddle.org/v1"
SH = put("spec/launcher", "sh")


def make_training_job(
    *,
    master: bool = True,
    pservers: int = 2,
    trainers: tuple[int, int] = (2, 4),
    ft: bool = True,
    **spec: Any,
) -> Manifest:
    """A job; `trainers` are its bounds."""
    trainer = {"entrypoint": "train", "min-instance": trainers[0], "max-instance": trainers[1]}
    roles: Manifest = {"master": {}} if master else {}
    roles |= {"pserver": {"min-instance": pservers}} if pservers else {}
    fields = {"image": "train:1", "fault_tolerant": ft, "trainer": trainer} | roles | spec
    return make_manifest(API_VERSION, "TrainingJob", "ctr", **fields)


def make_trainers(pod: Manifest, replicas: int) -> Manifest:
    """The spec of a job of trainers only."""
    container = pod["containers"][0]
    trainer = {
        "entrypoint": shlex.join(["exec", *container["command"]]),
        "min-instance": 1,
        "max-instance": 4,
        "parallelism": replicas,
        "resources": container["resources"],
    }
    kept = {key: container[key] for key in ("name", "imagePullPolicy", "securityContext")}
    template = {"spec": {**pod, "containers": [kept]}}
    return {"image": container["image"], "launcher": "sh", "trainer": trainer, "template": template}


MISTAKES = (
    Mistake("no spec", put("spec", None), r"spec: required", "spec"),
    Mistake("no trainer", put("spec/trainer", None), r"spec\.trainer: required", "spec.trainer"),
    Mistake("zero trainers", put("spec/trainer/min-instance", 0), r"trainer\.min-instance", "min-instance"),
    Mistake("negative", put("spec/trainer/min-instance", -1), r"trainer\.min-instance", "min-instance"),
    Mistake("no number", put("spec/trainer/min-instance", "two"), r"trainer\.min-instance", "min-instance"),
    Mistake(
        "min > max", put("spec/trainer/min-instance", 7), r"trainer\.max-instance: is 4, less", "max-instance"
    ),
    Mistake("too many", put("spec/trainer/max-instance", 10_001), r"trainer\.max-instance", "max-instance"),
    Mistake(
        "above max",
        put("spec/trainer/parallelism", 7),
        r"trainer\.parallelism: is 7; must be from 2",
        "parallelism",
    ),
    Mistake("below min", put("spec/trainer/parallelism", 1), r"trainer\.parallelism", "parallelism"),
    Mistake("zero pservers", put("spec/pserver/min-instance", 0), r"pserver\.min-instance", "min-instance"),
    Mistake(
        "pserver min > max", put("spec/pserver/max-instance", 1), r"pserver\.max-instance", "max-instance"
    ),
    Mistake("unknown role", put("spec/worker", {}), r"spec\.worker: unknown field", "spec.worker"),
    Mistake("misspelt", put("spec/trainer/minInstance", 1), r"did you mean 'min-instance'", "minInstance"),
    Mistake("port too high", put("spec/port", 65536), r"spec\.port", "spec.port"),
    Mistake(
        "last port too high",
        both(put("spec/port", 65000), put("spec/ports_num", 600)),
        r"spec\.port: the ports end",
        "port",
    ),
    Mistake("negative ports", put("spec/ports_num", -1), r"spec\.ports_num", "ports_num"),
    Mistake("no boolean", put("spec/fault_tolerant", "perhaps"), r"spec\.fault_tolerant", "fault_tolerant"),
    Mistake("empty image", put("spec/image", ""), r"spec\.image", "spec.image"),
    Mistake(
        "passes twice",
        both(put("spec/passes", 2), put("spec/trainer/passes", 3)),
        r"spec\.passes: stands in",
        "passes",
    ),
    Mistake("negative passes", put("spec/trainer/passes", -1), r"trainer\.passes", "passes"),
    Mistake(
        "no quantity",
        put("spec/trainer/resources", {"limits": {"cpu": "much"}}),
        r"resources\.limits\.cpu",
        "limits.cpu",
    ),
    Mistake("relative mountPath", put("spec/mountPath", "work"), r"spec\.mountPath", "mountPath"),
    Mistake(
        "a volume without name", put("spec/volumes", [{"hostPath": {}}]), r"volumes\.0\.name", server=None
    ),
    Mistake(
        "two volumes",
        put("spec/volumes", [{"name": "a"}, {"name": "a"}]),
        r"volumes\.1\.name: 'a' stands here twice",
        server=None,
    ),
    Mistake(
        "no such volume",
        put("spec/VolumeMounts", [{"name": "b", "mountPath": "/b"}]),
        r"VolumeMounts\.0\.name",
        server=None,
    ),
    Mistake(
        "selector twice",
        both(put("spec/NodeSelector", {"a": "b"}), put("spec/nodeSelector", {"a": "b"})),
        r"nodeSelector: stands in NodeSelector",
        "nodeSelector",
    ),
    Mistake(
        "network twice",
        both(put("spec/host_network", True), put("spec/hostNetwork", True)),
        r"hostNetwork: stands",
        "hostNetwork",
    ),
    Mistake(
        "a secret without name", put("spec/imagePullSecrets", [{}]), r"imagePullSecrets\.0\.name", server=None
    ),
    Mistake("unknown launcher", put("spec/launcher", "bash"), r"spec\.launcher", "launcher"),
    Mistake(
        "sh: master without entrypoint", SH, r"master\.entrypoint: launcher sh needs it", "master.entrypoint"
    ),
    Mistake(
        "sh: pserver without",
        both(SH, put("spec/master/entrypoint", "m")),
        r"pserver\.entrypoint",
        "pserver.entrypoint",
    ),
    Mistake(
        "script with entrypoint",
        put("spec/pserver/entrypoint", "p"),
        r"used with launcher sh only",
        "pserver.entrypoint",
    ),
    Mistake(
        "negative time", put("spec/readyTimeoutSeconds", -1), r"readyTimeoutSeconds", "readyTimeoutSeconds"
    ),
    Mistake("percent too high", put("spec/failurePercent", 1001), r"failurePercent", "failurePercent"),
    Mistake(
        "env no list",
        put("spec/template", {"spec": {"containers": [{"name": "main", "env": {"A": "b"}}]}}),
        r"template\.spec\.containers\.0\.env",
        "containers[0].env in body must be of type array",
    ),
    Mistake("capitals in the name", put("metadata/name", "Ctr"), r"metadata\.name", "metadata.name"),
    Mistake("name too long", put("metadata/name", "c" * 51), r"metadata\.name: has 51", "metadata.name"),
)

CASES = KindCases(
    example=make_training_job(template={}),
    ends=("succeeded", "failed"),
    mistakes=MISTAKES,
    detailed=make_manifest(
        API_VERSION, "TrainingJob", "x",
        image="none",
        port=7164,
        fault_tolerant=True,
        passes=1,
        trainer={
            "entrypoint": "sleep 300", "workspace": "/tmp", "min-instance": 1, "max-instance": 2,
            "resources": make_detailed_template()["spec"]["containers"][0]["resources"],
        },
        pserver={"min-instance": 1, "max-instance": 1},
        master={},
        template=make_detailed_template(),
    ),
    template=("spec", "template"),
    four_pods={
        "image": "train:1",
        "fault_tolerant": True,
        "master": {},
        "pserver": {"min-instance": 1},
        "trainer": {"entrypoint": "train", "min-instance": 2, "max-instance": 2},
    },
    installed=SingleRole("trainer", make_trainers),
)  # fmt: skip
