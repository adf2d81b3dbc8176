"""What a TrainingJob's manifest may say: `edl_workflows.core.jobs.training_job.model`, and the same in the
API server.
"""

import copy
from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.actions import RoleChange
from edl_workflows.core.jobs.training_job.kind import TRAINING_JOB, elastic_role, scale
from edl_workflows.core.jobs.training_job.model import TrainingJob
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.schemas import structural
from tests.cases.kind import Manifest
from tests.cases.kinds.training_job import make_training_job
from tests.unit.core.jobs.admission import refused_by_server, served_resource


def make(**spec: Any) -> Manifest:
    """A job whose roles have both bounds."""
    servers = {"min-instance": 2, "max-instance": 2}
    return make_training_job(trainers=(2, 6), pserver=servers, **copy.deepcopy(spec))


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
    structural.set_defaults(old, served_resource("TrainingJob").schema)
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
