"""``edl submit``, against a real API server: several manifests, dry runs, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.pipelines.cli.root import run
from edl_workflows.pipelines.stages import driver, submit
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.pipelines.waiting.results import StageResult
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, Scope
from tests.airflow.support import elastic_job
from tests.unit.pipelines.cli.edl_command import Edl, tf_job


def _data(output: str) -> Any:
    return json.loads(output)


def test_several_jobs_from_files_folders_and_lists(edl: Edl, cluster: Cluster, tmp_path: Path) -> None:
    """Documents of a file, files of a folder and items of a List are all submitted, as by kubectl."""
    both = yaml.safe_dump_all([elastic_job("first"), None, elastic_job("second")])
    (tmp_path / "both.yaml").write_text(both)
    folder = tmp_path / "jobs"
    (folder / "deeper").mkdir(parents=True)
    listed = {"apiVersion": "v1", "kind": "List", "items": [elastic_job("third"), tf_job("fourth")]}
    (folder / "list.json").write_text(json.dumps(listed))
    (folder / "notes.txt").write_text("no manifest")
    (folder / "deeper" / "fifth.yml").write_text(yaml.safe_dump(elastic_job("fifth")))

    code, out, err = edl("submit", "-f", str(tmp_path / "both.yaml"), "-f", str(folder))
    assert code == 0, err
    assert [line.split()[1] for line in out.splitlines()[1:]] == ["first", "second", "third", "fourth"]
    code, out, err = edl("submit", "-R", str(folder / "deeper"), "-o", "json")
    assert (code, _data(out)["name"]) == (0, "fifth"), err
    _, out, _ = edl("get")
    assert {line.split()[0] for line in out.splitlines()[1:]} == {
        "first",
        "second",
        "third",
        "fourth",
        "fifth",
    }


def test_nothing_is_created_if_one_is_wrong(edl: Edl, cluster: Cluster, tmp_path: Path) -> None:
    """All manifests are checked before the first job is created."""
    wrong = elastic_job("second")
    wrong["spec"]["replicaSpec"] = {}
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump_all([elastic_job("first"), wrong]))

    code, _, err = edl("submit", str(path))

    assert code == 2
    assert "spec.replicaSpec" in err
    assert client.find(cluster, ELASTIC_JOBS, "first") is None


def test_one_name_that_is_taken_keeps_no_other_from_being_created(
    edl: Edl, cluster: Cluster, tmp_path: Path
) -> None:
    """If the name of one job is taken, the other jobs are created. The command exits with the code for
    conflicts and names the job."""
    client.create(cluster, elastic_job("first"))
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump_all([elastic_job("first"), elastic_job("second")]))

    code, _, err = edl("submit", str(path))

    assert code == 4
    assert "/first exists already" in err
    assert client.find(cluster, ELASTIC_JOBS, "second") is not None


def test_what_was_created_is_named_whatever_fails_afterwards(
    edl: Edl, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the server does not return the state of the first job, its generated name is printed nevertheless,
    and so is the second one."""
    nameless = elastic_job("")
    path = tmp_path / "jobs.yaml"
    path.write_text(yaml.safe_dump_all([nameless, nameless]))
    look, asked = driver.check_now, []

    def look_but_first(of: Cluster, handle: Handle) -> StageResult:
        asked.append(handle.name)
        if len(asked) == 1:
            raise UnavailableError("the API server is overloaded; try again")
        return look(of, handle)

    monkeypatch.setattr(driver, "check_now", look_but_first)
    code, out, err = edl("submit", str(path))

    created = [
        job["metadata"]["name"]
        for job in client.list_objects(cluster, Scope(ELASTIC_JOBS, cluster.namespace)).items
    ]
    first, second = asked
    assert sorted(created) == sorted(asked)
    assert (code, first in err, second in out) == (6, True, True)
    assert "overloaded" in err


def test_what_is_checked_is_what_is_created(
    edl: Edl, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest that is checked is the one that is created, including its generated name."""
    nameless = elastic_job("")
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(nameless))
    complete, completed = submit.complete_manifest, []

    def note_completed(
        request: submit.SubmitRequest, identity: StageIdentity, namespace: str
    ) -> dict[str, Any]:
        completed.append(complete(request, identity, namespace))
        return completed[-1]

    monkeypatch.setattr(submit, "complete_manifest", note_completed)
    code, out, err = edl("submit", str(path), "-o", "json")

    assert code == 0, err
    assert {one["metadata"]["name"] for one in completed} == {_data(out)["name"]}


@pytest.mark.parametrize("who", ["client", "server"])
def test_a_dry_run_creates_nothing(edl: Edl, cluster: Cluster, manifest: Path, who: str) -> None:
    """A dry run prints what would be created, completely with -o yaml. It fails on errors."""
    code, out, err = edl("submit", str(manifest), "--dry-run", who, "-o", "json")
    assert code == 0, err
    made = _data(out)
    assert (made["metadata"]["name"], made["metadata"]["namespace"]) == ("mnist", cluster.namespace)
    assert ("uid" in made["metadata"]) is (who == "server")
    code, out, _ = edl("submit", str(manifest), "--dry-run", who)
    assert f"valid ({who} dry run)" in out
    assert client.find(cluster, ELASTIC_JOBS, "mnist") is None

    wrong = elastic_job("mnist")
    wrong["spec"]["replicaSpec"] = {}
    manifest.write_text(yaml.safe_dump(wrong))
    code, _, err = edl("submit", str(manifest), "--dry-run", who)
    assert (code, "spec.replicaSpec" in err) == (2, True)


def test_a_server_knows_what_a_client_can_not(edl: Edl, cluster: Cluster, manifest: Path) -> None:
    """A dry run on the server also finds a name that is in use."""
    client.create(cluster, elastic_job("mnist"))

    assert edl("submit", str(manifest), "--dry-run", "client")[0] == 0
    assert edl("submit", str(manifest), "--dry-run", "server")[0] == 4


def test_a_client_s_dry_run_needs_no_cluster(
    manifest: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A dry run of the client needs no cluster, so that the tests of a repository can check manifests."""
    assert run(["submit", str(manifest), "--dry-run", "client", "--kubeconfig", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[:3] == ["default", "mnist", "ElasticJob"]


@pytest.mark.parametrize(
    ("files", "arguments", "says"),
    [
        ({}, [], "no manifests: give"),
        ({"a.yaml": ""}, ["a.yaml"], "contains no object"),
        ({"a.yaml": "a: 1\n---\n- 2"}, ["a.yaml"], "a.yaml, document 2"),
        ({"a.txt": "x"}, ["."], "no file that ends in"),
        ({"a.yaml": "kind: ConfigMap"}, ["a.yaml"], "'ConfigMap' is no kind"),
        (
            {"a.yaml": "kind: ElasticJob"},
            ["a.yaml", "--wait", "--dry-run", "server"],
            "leave out --wait or --dry-run",
        ),
    ],
)
def test_what_is_no_job_is_refused(
    edl: Edl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], arguments: list[str],
    says: str
) -> None:  # fmt: skip
    """Input without a valid job is an error that says what is wrong."""
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    code, _, err = edl("submit", *arguments)

    assert code == 2
    assert says in err
