"""What a TrainingJob's manifest may say: `edl_workflows.core.jobs.training_job.model`, and the same in the
API server.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.actions import RoleChange
from edl_workflows.core.jobs.testing import JobsNamespace
from edl_workflows.core.jobs.training_job.kind import TRAINING_JOB, elastic_role, scale
from edl_workflows.core.jobs.training_job.model import TrainingJob
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.schemas import structural
from edl_workflows.local.apiserver.objects import admission, crds
from edl_workflows.pipelines.install import crds as crd

Manifest = dict[str, Any]
Change = Callable[[Manifest], None]


def make(**spec: Any) -> Manifest:
    return {
        "apiVersion": "paddlepaddle.org/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "ctr"},
        "spec": {
            "image": "train:1",
            "fault_tolerant": True,
            "master": {},
            "pserver": {"min-instance": 2, "max-instance": 2},
            "trainer": {"entrypoint": "python train.py", "min-instance": 2, "max-instance": 6},
            **copy.deepcopy(spec),
        },
    }


def put(path: str, value: Any) -> Change:
    """A change of one field; None removes it."""

    def change(manifest: Manifest) -> None:
        *way, last = path.split("/")
        node: Any = manifest
        for part in way:
            node = node.setdefault(part, {})
        if value is None:
            del node[last]
        else:
            node[last] = value

    return change


def both(*changes: Change) -> Change:
    """Several changes."""

    def change(manifest: Manifest) -> None:
        for one in changes:
            one(manifest)

    return change


def refused_by_server(manifest: Manifest, old: Manifest | None = None) -> str:
    """What the API server with our definition says of an object, as strict clients ask; "" if it takes it."""
    resource = crds.resources_of_definition(crd.crd_of_kind(TRAINING_JOB))[0]
    obj = copy.deepcopy(manifest)
    unknown = structural.prune_unknown_fields(obj, resource.schema, root=True)
    structural.set_defaults(obj, resource.schema)
    causes = admission.check_schema(resource, obj, old)
    return "; ".join([*(f'unknown field "{path}"' for path in unknown), *map(str, causes)])


SH = put("spec/launcher", "sh")
BAD: list[Any] = [
    pytest.param(put("spec", None), r"spec: required", "spec", id="no spec"),
    pytest.param(put("spec/trainer", None), r"spec\.trainer: required", "spec.trainer", id="no trainer"),
    pytest.param(
        put("spec/trainer/min-instance", 0), r"trainer\.min-instance", "min-instance", id="zero trainers"
    ),
    pytest.param(
        put("spec/trainer/min-instance", -1), r"trainer\.min-instance", "min-instance", id="negative"
    ),
    pytest.param(
        put("spec/trainer/min-instance", "two"), r"trainer\.min-instance", "min-instance", id="no number"
    ),
    pytest.param(
        put("spec/trainer/min-instance", 7),
        r"trainer\.max-instance: is 6, less",
        "max-instance",
        id="min > max",
    ),
    pytest.param(
        put("spec/trainer/max-instance", 10_001), r"trainer\.max-instance", "max-instance", id="too many"
    ),
    pytest.param(
        put("spec/trainer/parallelism", 7),
        r"trainer\.parallelism: is 7; must be from 2",
        "parallelism",
        id="above max",
    ),
    pytest.param(put("spec/trainer/parallelism", 1), r"trainer\.parallelism", "parallelism", id="below min"),
    pytest.param(
        put("spec/pserver/min-instance", 0), r"pserver\.min-instance", "min-instance", id="zero pservers"
    ),
    pytest.param(
        put("spec/pserver/max-instance", 1), r"pserver\.max-instance", "max-instance", id="pserver min > max"
    ),
    pytest.param(put("spec/worker", {}), r"spec\.worker: unknown field", "spec.worker", id="unknown role"),
    pytest.param(
        put("spec/trainer/minInstance", 1), r"did you mean 'min-instance'", "minInstance", id="misspelt"
    ),
    pytest.param(put("spec/port", 65536), r"spec\.port", "spec.port", id="port too high"),
    pytest.param(
        both(put("spec/port", 65000), put("spec/ports_num", 600)),
        r"spec\.port: the ports end",
        "port",
        id="last port too high",
    ),
    pytest.param(put("spec/ports_num", -1), r"spec\.ports_num", "ports_num", id="negative ports"),
    pytest.param(
        put("spec/fault_tolerant", "perhaps"), r"spec\.fault_tolerant", "fault_tolerant", id="no boolean"
    ),
    pytest.param(put("spec/image", ""), r"spec\.image", "spec.image", id="empty image"),
    pytest.param(
        both(put("spec/passes", 2), put("spec/trainer/passes", 3)),
        r"spec\.passes: stands in",
        "passes",
        id="passes twice",
    ),
    pytest.param(put("spec/trainer/passes", -1), r"trainer\.passes", "passes", id="negative passes"),
    pytest.param(
        put("spec/trainer/resources", {"limits": {"cpu": "much"}}),
        r"resources\.limits\.cpu",
        "limits.cpu",
        id="no quantity",
    ),
    pytest.param(put("spec/mountPath", "work"), r"spec\.mountPath", "mountPath", id="relative mountPath"),
    pytest.param(
        put("spec/volumes", [{"hostPath": {}}]), r"volumes\.0\.name", None, id="a volume without name"
    ),
    pytest.param(
        put("spec/volumes", [{"name": "a"}, {"name": "a"}]),
        r"volumes\.1\.name: 'a' stands here twice",
        None,
        id="two volumes",
    ),
    pytest.param(
        put("spec/VolumeMounts", [{"name": "b", "mountPath": "/b"}]),
        r"VolumeMounts\.0\.name",
        None,
        id="no such volume",
    ),
    pytest.param(
        both(put("spec/NodeSelector", {"a": "b"}), put("spec/nodeSelector", {"a": "b"})),
        r"nodeSelector: stands in NodeSelector",
        "nodeSelector",
        id="selector twice",
    ),
    pytest.param(
        both(put("spec/host_network", True), put("spec/hostNetwork", True)),
        r"hostNetwork: stands",
        "hostNetwork",
        id="network twice",
    ),
    pytest.param(
        put("spec/imagePullSecrets", [{}]), r"imagePullSecrets\.0\.name", None, id="a secret without name"
    ),
    pytest.param(put("spec/launcher", "bash"), r"spec\.launcher", "launcher", id="unknown launcher"),
    pytest.param(
        SH,
        r"master\.entrypoint: launcher sh needs it",
        "master.entrypoint",
        id="sh: master without entrypoint",
    ),
    pytest.param(
        both(SH, put("spec/master/entrypoint", "m")),
        r"pserver\.entrypoint",
        "pserver.entrypoint",
        id="sh: pserver without",
    ),
    pytest.param(
        put("spec/pserver/entrypoint", "p"),
        r"used with launcher sh only",
        "pserver.entrypoint",
        id="script with entrypoint",
    ),
    pytest.param(
        put("spec/readyTimeoutSeconds", -1), r"readyTimeoutSeconds", "readyTimeoutSeconds", id="negative time"
    ),
    pytest.param(
        put("spec/failurePercent", 1001), r"failurePercent", "failurePercent", id="percent too high"
    ),
    pytest.param(
        put("spec/template", {"spec": {"containers": [{"name": "main", "env": {"A": "b"}}]}}),
        r"template\.spec\.containers\.0\.env",
        None,
        id="env no list",
    ),
    pytest.param(put("metadata/name", "Ctr"), r"metadata\.name", "metadata.name", id="capitals in the name"),
    pytest.param(
        put("metadata/name", "c" * 51), r"metadata\.name: has 51", "metadata.name", id="name too long"
    ),
]


@pytest.mark.parametrize(("change", "message", "server"), BAD)
def test_a_wrong_manifest_is_refused_by_its_field(change: Change, message: str, server: str | None) -> None:
    """Each mistake in a manifest gives an error that names the field, from the model and, where a schema can
    express it, from the API server."""
    manifest = make()
    change(manifest)
    with pytest.raises(ManifestError, match=message):
        TrainingJob.parse(manifest)
    assert (server or "") in refused_by_server(manifest)


@pytest.mark.parametrize("change", [row.values[0] for row in BAD if row.values[2] is None])
def test_what_only_the_model_sees_fails_the_job_with_the_field(change: Change) -> None:
    """A mistake that the API server admits fails the job at once, with a reason that names the field."""
    manifest = make()
    change(manifest)
    with pytest.raises(ManifestError) as error:
        TrainingJob.parse(manifest)
    world = JobsNamespace()
    world.add(manifest)
    world.settle()
    status = world.objects["TrainingJob", "ctr"]["status"]
    assert (status["phase"], status["reason"]) == ("failed", "InvalidSpec")
    assert error.value.problems[0].path in status["message"]


def test_another_version_is_refused() -> None:
    """A manifest of another API version is rejected."""
    with pytest.raises(ManifestError, match=r"apiVersion"):
        TrainingJob.parse(make() | {"apiVersion": "paddlepaddle.org/v2"})


def test_a_good_manifest_is_taken_by_both() -> None:
    """A valid manifest in either spelling passes model and schema, and keeps all fields."""
    for manifest in (
        make(),
        make(passes=3, hostNetwork=True, nodeSelector={"a": "b"}, volumeMounts=[], suspend=True),
    ):
        TrainingJob.parse(manifest)
        assert refused_by_server(manifest) == ""


def test_defaults() -> None:
    """Missing fields and Go's zero values have upstream's defaults. The smallest job has one trainer and
    nothing else."""
    least = {"apiVersion": "paddlepaddle.org/v1", "kind": "TrainingJob", "metadata": {"name": "a"}}
    zeros: dict[str, Any] = dict.fromkeys(("port", "ports_num", "ports_num_for_sparse", "passes"), 0)
    specs: list[dict[str, Any]] = [{"trainer": {}}, {**zeros, "trainer": {}}]
    for spec in specs:
        found = TrainingJob.parse(least | {"spec": spec}).spec
        assert list(found.ports) == [7164, 7165]
        assert found.all_passes == 1
        assert {str(role): count for role, count in found.counts.items()} == {"trainer": 1}
        assert found.image == "paddlepaddle/paddlecloud-job"


@pytest.mark.parametrize("spec", [{"passes": 10}, {"trainer": {"entrypoint": "t", "passes": 10}}])
def test_passes_at_both_levels(spec: dict[str, Any]) -> None:
    """`passes` may be below trainer, as in the documentation, or beside it, as in upstream's code."""
    assert TrainingJob.parse(make(**spec)).spec.all_passes == 10


def test_bounds_may_be_edited_past_the_number_of_trainers() -> None:
    """The number of trainers follows an edit of the bounds. A number outside of them is rejected, also from
    `kubectl scale`."""
    old = make()
    old["spec"]["trainer"]["parallelism"] = 5
    old["status"] = {"phase": "running"}
    structural.set_defaults(old, crds.resources_of_definition(crd.crd_of_kind(TRAINING_JOB))[0].schema)
    new = copy.deepcopy(old)
    new["spec"]["trainer"]["max-instance"] = 3
    assert refused_by_server(new, old) == ""
    assert TrainingJob.parse(new).spec.trainer.desired == 3
    new["spec"]["trainer"]["parallelism"] = 4
    assert "parallelism: must be from min-instance to max-instance" in refused_by_server(new, old)


def test_phases_are_final_for_the_server() -> None:
    """The API server refuses to change a final phase."""
    old, new = make(), make()
    old["status"], new["status"] = {"phase": "succeeded"}, {"phase": "running"}
    assert "phases succeeded and failed are final" in refused_by_server(new, old)


def test_scaling_by_role() -> None:
    """Trainers are scaled by parallelism within their bounds, and pservers by their number. A size applies to
    new pods."""
    job = TrainingJob.parse(make())
    found = scale(job, {"trainer": RoleChange(4), "pserver": RoleChange(3, {"cpu": "2"})})
    assert found.spec == {
        "trainer": {"parallelism": 4},
        "pserver": {
            "min-instance": 3,
            "max-instance": 3,
            "resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}},
        },
    }
    assert found.nodes == 8
    assert scale(job, {"worker": RoleChange(4), "ps": RoleChange(3, {"cpu": "2"})}) == found, (
        "as other kinds call them"
    )


@pytest.mark.parametrize(
    ("role", "replicas", "message"),
    [
        ("trainer", 7, r"replicas\.trainer: must be from 2 \(min-instance\) to 6"),
        ("trainer", 1, r"replicas\.trainer: must be from 2"),
        ("pserver", 0, r"replicas\.pserver: at least one"),
        ("master", 2, r"replicas\.master: a job has one master"),
        ("chief", 2, r"replicas\.chief: .* it has master, pserver, trainer"),
    ],
)
def test_wrong_scaling(role: str, replicas: int, message: str) -> None:
    """A number out of the bounds, and an unknown role, are rejected."""
    with pytest.raises(ManifestError, match=message):
        scale(TrainingJob.parse(make()), {role: RoleChange(replicas)})


@pytest.mark.parametrize(
    ("phase", "seen"),
    [
        (None, JobPhase.PENDING),
        ("creating", JobPhase.PENDING),
        ("running", JobPhase.RUNNING),
        ("scaling", JobPhase.SCALING),
        ("suspended", JobPhase.SUSPENDED),
        ("succeeded", JobPhase.SUCCEEDED),
        ("failed", JobPhase.FAILED),
    ],
)
def test_phases_in_the_words_of_all_kinds(phase: str | None, seen: JobPhase) -> None:
    """Stages and sensors see the phases that all kinds have in common."""
    status = {} if phase is None else {"phase": phase}
    assert TRAINING_JOB.view is not None
    assert TRAINING_JOB.view(TrainingJob.parse(make() | {"status": status})).phase is seen


def test_what_an_autoscaler_may_change() -> None:
    """An autoscaler may change the trainers until one has succeeded, since the job is ending then."""
    job = TrainingJob.parse(make())
    over = {"replicaStatuses": {"trainer": {"state": "running", "completed": [0]}}}
    found, none = elastic_role(job), elastic_role(TrainingJob.parse(make() | {"status": over}))

    assert found is not None
    assert (found.role, found.minimum, found.maximum, found.replicas, found.bounded) == (
        "trainer",
        2,
        6,
        2,
        True,
    )
    assert none is None
