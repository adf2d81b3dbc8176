"""``edl backup`` and ``edl restore``, against a real API server."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.core.exceptions import ConflictError, ForbiddenError, InvalidError
from edl_workflows.core.jobs.elastic_job.program import PROGRAM_KEY, TrainingProgram
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.backup import read_backup, restore_job, save_job
from edl_workflows.pipelines.stages.submit import SubmitRequest, begin_submit
from edl_workflows.pipelines.waiting.identity import OWNER_ANNOTATION, StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.client import DeletionOptions
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import CONFIG_MAPS, ELASTIC_JOBS, Scope, of_manifest
from tests.airflow.support import elastic_job
from tests.cases.kinds import KIND_CASES
from tests.unit.pipelines.cli.edl_command import Edl, tf_job
from tests.unit.runtime.kube.support import eventually

PIPELINE = StageIdentity("airflow/retrain/r1/train/-1", attempt="7", on_cancel="delete")
CHECKPOINT = {"uri": "file:///data/checkpoints/120", "step": 120, "time": "2026-11-29T04:00:00Z"}


def _delete(cluster: Cluster, job: dict[str, Any]) -> None:
    """Delete a job with all that it owns, and wait until it is gone."""
    name, resource = job["metadata"]["name"], of_manifest(job)
    client.delete(cluster, resource, name, options=DeletionOptions(propagation="Foreground"))
    eventually(lambda: client.find(cluster, resource, name) is None)


def test_a_job_comes_back_as_it_was(edl_alone: Edl, cluster: Cluster, tmp_path: Path) -> None:
    """A job of a pipeline with a program is saved, deleted and restored: its spec, labels and owner are the
    same, so that its task continues with it, and its program belongs to the new job. What the server and the
    controller wrote is not in the backup."""
    program = TrainingProgram.of_script("train.py", "print('trains')")
    request = SubmitRequest(manifest=elastic_job("mnist"), program=program)
    begin_submit(cluster, request, PIPELINE)
    kept = {names.SUSPENDED_ANNOTATION: "airflow", "team": "vision"}
    marks = {names.GONE_ANNOTATION: "x", names.AWAITED_STEP_PREFIX + "ab": "5", **kept}
    body = {"metadata": {"annotations": marks, "labels": {"cost-centre": "7"}}}
    before = client.patch(cluster, ELASTIC_JOBS, "mnist", body)
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", {"phase": "Running", "checkpoint": CHECKPOINT})
    folder = tmp_path / "saved"

    code, out, err = edl_alone("backup", str(folder), "-o", "json")
    assert code == 0, err
    assert json.loads(out)[0]["continues from"] == "step 120, file:///data/checkpoints/120"
    (file,) = folder.rglob("*.yaml")
    assert file.relative_to(folder) == Path(cluster.namespace, "elasticjob-mnist.yaml")
    assert not {"uid", "resourceVersion", "status", "ownerReferences"} & set(file.read_text().split(": "))
    _delete(cluster, before)
    client.delete(cluster, CONFIG_MAPS, program.config_map_name("mnist"))  # as the garbage collector does
    code, out, err = edl_alone("restore", str(folder))

    assert code == 0, err
    assert out.split()[-1] == "created"
    after = client.get(cluster, ELASTIC_JOBS, "mnist")
    assert after["spec"] == before["spec"]
    assert after["metadata"]["labels"] == before["metadata"]["labels"]
    assert after["metadata"]["annotations"] == kept | PIPELINE.annotations
    assert after["metadata"]["annotations"][OWNER_ANNOTATION] == PIPELINE.owner
    assert "status" not in after
    config_map = client.get(cluster, CONFIG_MAPS, program.config_map_name("mnist"))
    assert config_map["data"] == {PROGRAM_KEY: program.text}
    assert [owner["uid"] for owner in config_map["metadata"]["ownerReferences"]] == [after["metadata"]["uid"]]


@pytest.mark.parametrize("kind", sorted(KIND_CASES))
def test_jobs_of_every_kind(cluster: Cluster, kind: str) -> None:
    """Jobs of every kind come back with the same spec."""
    example = KIND_CASES[kind].example
    manifest = {**example, "metadata": {"name": example["metadata"]["name"]}}
    resource = of_manifest(manifest)
    created = client.create(cluster, manifest)
    (saved,) = read_backup(save_job(cluster, created).to_list()["items"])
    _delete(cluster, created)

    assert restore_job(cluster, saved)
    assert client.get(cluster, resource, manifest["metadata"]["name"])["spec"] == created["spec"]


def test_a_restoration_may_be_repeated(edl_alone: Edl, cluster: Cluster, tmp_path: Path) -> None:
    """Jobs that exist as the backup has them stay; a job of another spec is named, and keeps no other from
    being restored."""
    for job in (elastic_job("first"), elastic_job("second"), tf_job("third")):
        client.create(cluster, job)
    folder = str(tmp_path / "saved")
    assert edl_alone("backup", folder)[0] == 0
    changed = {"worker": {"replicas": 7}}
    client.patch(cluster, ELASTIC_JOBS, "first", {"spec": {"replicaSpecs": changed}})
    second = client.get(cluster, ELASTIC_JOBS, "second")
    _delete(cluster, second)

    code, out, err = edl_alone("restore", folder, "-o", "json")

    assert code == 4
    assert f"{cluster.namespace}/first exists, and its spec is another one" in err
    assert {(row["name"], row["result"]) for row in json.loads(out)} == {
        ("second", "created"),
        ("third", "exists"),
    }


def test_a_program_that_is_missing_is_made_again(cluster: Cluster) -> None:
    """If a restoration was interrupted between a job and its program, its repetition creates the program."""
    program = TrainingProgram.of_script("train.py", "print('trains')")
    begin_submit(cluster, SubmitRequest(manifest=elastic_job("mnist"), program=program), PIPELINE)
    saved = save_job(cluster, client.get(cluster, ELASTIC_JOBS, "mnist"))
    client.delete(cluster, CONFIG_MAPS, program.config_map_name("mnist"))

    assert not restore_job(cluster, saved)
    assert client.get(cluster, CONFIG_MAPS, program.config_map_name("mnist"))["data"][PROGRAM_KEY]


def test_jobs_that_have_ended_are_left_out(edl_alone: Edl, cluster: Cluster, tmp_path: Path) -> None:
    """A job that has ended would train again, so it is not saved."""
    client.create(cluster, elastic_job("over"))
    client.patch_status(cluster, ELASTIC_JOBS, "over", {"phase": "Succeeded"})

    assert edl_alone("backup", str(tmp_path / "a"), "-o", "json")[1].strip() == "[]"


def test_a_job_that_is_being_deleted_is_no_restored_job(cluster: Cluster) -> None:
    """Its restoration must be tried again, since it will soon be gone."""
    job = elastic_job("mnist")
    job["metadata"]["finalizers"] = ["example.com/wait"]
    saved = save_job(cluster, client.create(cluster, job))
    client.delete(cluster, ELASTIC_JOBS, "mnist")

    with pytest.raises(ConflictError, match="is being deleted"):
        restore_job(cluster, saved)
    client.patch(cluster, ELASTIC_JOBS, "mnist", {"metadata": {"finalizers": None}})


def test_defaults_that_a_newer_definition_adds_are_no_difference(cluster: Cluster) -> None:
    """A saved spec that lacks what the server adds is that of the restored job."""
    saved = save_job(cluster, client.create(cluster, elastic_job("mnist")))
    client.patch(cluster, ELASTIC_JOBS, "mnist", {"spec": {"activeDeadlineSeconds": 9000}})

    assert not restore_job(cluster, saved)


def test_a_kind_that_may_not_be_listed_fails_the_backup(
    edl_alone: Edl, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup without the jobs of a kind would look whole."""
    client.create(cluster, elastic_job("mnist"))
    list_all = client.list_objects

    def refuse(of: Cluster, scope: Scope) -> client.ObjectList:
        if scope.resource.kind == "TFJob":
            raise ForbiddenError("tfjobs is forbidden")
        return list_all(of, scope)

    monkeypatch.setattr(client, "list_objects", refuse)
    code, _, err = edl_alone("backup", str(tmp_path / "a"))

    assert (code, "tfjobs is forbidden" in err, (tmp_path / "a").exists()) == (5, True, False)


def test_a_config_map_that_is_no_program_is_not_saved(cluster: Cluster) -> None:
    """A container may read the variable from a ConfigMap of its own, which the backup would not be."""
    client.create(cluster, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own"}, "data": {}})
    job = elastic_job("mnist")
    (container,) = job["spec"]["replicaSpecs"]["worker"]["template"]["spec"]["containers"]
    source = {"configMapKeyRef": {"name": "own", "key": "x"}}
    container["env"] = [{"name": names.ENV_PROGRAM, "valueFrom": source}]

    saved = save_job(cluster, client.create(cluster, job))

    assert saved.programs == ()


def test_a_backup_is_whole_or_absent(
    edl_alone: Edl, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An existing folder is not touched, and a disk that fills up leaves nothing behind."""
    client.create(cluster, elastic_job("mnist"))
    (tmp_path / "there").mkdir()
    code, _, err = edl_alone("backup", str(tmp_path / "there"))
    assert (code, "exists already" in err) == (2, True)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", refuse)
    code, _, err = edl_alone("backup", str(tmp_path / "full"))
    assert (code, "No space left" in err) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"kind": "Pod", "metadata": {"name": "a", "namespace": "b"}}, "Pod b/a: a backup has jobs"),
        ({"kind": "ElasticJob", "metadata": {"name": "a", "namespace": "b"}}, "a backup has jobs"),
        (elastic_job("a"), "lacks metadata.name or .namespace"),
        ({"kind": "TFJob", "metadata": "a"}, "lacks metadata.name or .namespace"),
        ({"kind": "TFJob", "metadata": {"name": ["a"], "namespace": "b"}}, "lacks metadata.name"),
    ],
    ids=["foreign kind", "foreign group", "no namespace", "no metadata", "name is no text"],
)
def test_what_is_no_backup(document: dict[str, Any], problem: str) -> None:
    """What is neither a job nor a program is refused before anything is created."""
    with pytest.raises(InvalidError, match=problem):
        read_backup([document])


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"main": "a.py", "files": {"../a.py": ""}}'])
def test_a_damaged_program_is_refused(cluster: Cluster, text: str) -> None:
    """A job whose program is damaged is not created."""
    request = SubmitRequest(
        manifest={**elastic_job("mnist"), "metadata": {"name": "mnist", "namespace": cluster.namespace}},
        program=TrainingProgram.of_script("train.py", ""),
    )
    assert request.program is not None
    job = request.program.attach(request.manifest)
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": request.program.config_map_name("mnist"), "namespace": cluster.namespace},
        "data": {PROGRAM_KEY: text},
    }
    (saved,) = read_backup(yaml.safe_load_all(yaml.safe_dump_all([config_map, job])))

    with pytest.raises(InvalidError, match="has no program"):
        restore_job(cluster, saved)
    assert client.find(cluster, ELASTIC_JOBS, "mnist") is None
