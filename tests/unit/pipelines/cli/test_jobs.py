"""The commands about jobs, against a real API server with a simulated controller: effects, output and exit
codes."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job.separate_copies import NO_GROUP
from edl_workflows.core.jobs.scale_plan.model import ScalePlan, ScalePlanPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.api import TF_JOBS
from edl_workflows.pipelines.cli.jobs.job import show_outputs
from edl_workflows.pipelines.cli.options import OutputFormat
from edl_workflows.pipelines.cli.root import run
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.outputs import Outputs
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, SCALE_PLANS, Scope
from edl_workflows.testing import ApiServerProcess
from tests.airflow.support import StandIn, create_ps_pod, elastic_job
from tests.unit.pipelines.cli.edl_command import Edl, tf_job


def _data(output: str) -> Any:
    return json.loads(output)


def _plans(cluster: Cluster) -> list[ScalePlan]:
    return [
        ScalePlan.parse(item)
        for item in client.list_objects(cluster, Scope(SCALE_PLANS, cluster.namespace)).items
    ]


def test_a_job_from_submit_to_delete(edl: Edl, manifest: Path, cluster: Cluster) -> None:
    """Submit, wait, get, describe and delete succeed and print what a user needs."""
    code, out, err = edl("submit", str(manifest), "-o", "json")
    assert (code, _data(out)["name"]) == (0, "mnist"), err
    code, out, err = edl("wait", "mnist", "--for", "Running", "--timeout", "20")
    assert code == 0, err
    assert ["checkpoint", "uri /ck/100 step 100"] in [line.split(maxsplit=1) for line in out.splitlines()]
    code, out, _ = edl("get")
    assert code == 0
    assert out.splitlines()[0].split()[:4] == ["NAME", "KIND", "PHASE", "READY"]
    assert out.splitlines()[1].split()[:3] == ["mnist", "ElasticJob", "Running"]
    code, out, _ = edl("describe", "mnist")
    assert code == 0
    assert f"{cluster.namespace}/mnist" in out
    code, out, err = edl("delete", "mnist", "--timeout", "30")
    assert (code, client.find(cluster, ELASTIC_JOBS, "mnist")) == (0, None), err


def test_several_jobs_are_deleted(edl: Edl, cluster: Cluster) -> None:
    """A name that does not exist, or that is no name, keeps no other job from being deleted; each is named on
    a line of its own, and the exit code is that of the first. A name that is given twice counts once."""
    for name in ("a", "b"):
        client.create(cluster, elastic_job(name))

    code, out, err = edl("delete", "a", "typo", "b", "..", "a", "--timeout", "30")

    assert code == 3, err
    assert out.splitlines() == [f"ElasticJob {cluster.namespace}/{name} deleted" for name in ("a", "b")]
    assert [("/typo;" in line, "'..'" in line) for line in err.splitlines() if line.startswith("edl: ")] == [
        (False, True),
        (True, False),
    ]
    assert not client.list_objects(cluster, Scope(ELASTIC_JOBS, cluster.namespace)).items


def test_a_submission_that_waits_for_a_deletion_says_so(
    edl: Edl, manifest: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a job of the same name is still being deleted, `edl submit` says what it waits for."""
    held = elastic_job("mnist")
    held["metadata"]["finalizers"] = ["test.example/hold"]
    client.create(cluster, held)
    client.delete(cluster, ELASTIC_JOBS, "mnist")
    monkeypatch.setattr(ownership, "GONE_SECONDS", 0.1)

    code, _, err = edl("submit", str(manifest))

    assert code == 6, err
    job = f"ElasticJob {cluster.namespace}/mnist"
    assert f"{job} is being deleted: it is created again when it is gone" in err.splitlines()


def test_several_jobs_are_deleted_at_once(edl: Edl, cluster: Cluster) -> None:
    """All deletions are requested before the first is waited for: a job that takes long delays no other."""
    held = elastic_job("held")
    held["metadata"]["finalizers"] = ["test.example/hold"]
    for manifest in (held, elastic_job("other")):
        client.create(cluster, manifest)

    code, out, err = edl("delete", "held", "other", "--timeout", "1")

    assert (code, "held" in err.splitlines()[-1]) == (8, True), err
    assert out.splitlines() == [f"ElasticJob {cluster.namespace}/other deleted"]
    client.patch(cluster, ELASTIC_JOBS, "held", {"metadata": {"finalizers": None}})


def test_outputs_are_a_table_without_python(capsys: pytest.CaptureFixture[str]) -> None:
    """The table of a stage's outputs shows maps and lists as text. It leaves out what is empty, as the ready
    nodes of a job that has ended."""
    job = Outputs(
        kind="ElasticJob",
        namespace="default",
        name="mnist",
        job="mnist",
        warnings=["the disk is full", "ps-0 is slow"],
        replicas={"chief": 0, "ps": 1, "worker": 2},
        result=[],
    )

    show_outputs(job, OutputFormat.TABLE)

    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert rows["warnings"] == "the disk is full; ps-0 is slow"
    assert rows["replicas"] == "ps 1 worker 2"
    assert "result" not in rows


@pytest.mark.parametrize(
    ("arguments", "spec"),
    [
        pytest.param(
            ["scale", "mnist", "worker=3"],
            {"replicaResourceSpecs": {"worker": {"replicas": 3, "resource": {}}}},
            id="scale",
        ),
        pytest.param(
            ["migrate-ps", "mnist", "--replicas", "3", "--cpu", "2"],
            {"checkpoint": True, "replicaResourceSpecs": {"ps": {"replicas": 3, "resource": {"cpu": "2"}}}},
            id="migrate-ps",
        ),
        pytest.param(["checkpoint", "mnist"], {"checkpoint": True}, id="checkpoint"),
    ],
)
def test_changes_are_plans(
    edl: Edl, manifest: Path, cluster: Cluster, arguments: list[str], spec: dict[str, Any]
) -> None:
    """A change of a running job is a manual ScalePlan with this change, and the command waits for its
    success."""
    edl("submit", str(manifest))
    edl("wait", "mnist", "--for", "Running", "--timeout", "20")
    code, out, err = edl(*arguments, "--timeout", "30", "-o", "json")

    assert (code, _data(out)["phase"]) == (0, "Succeeded"), err
    (plan,) = _plans(cluster)
    assert not plan.auto
    wanted = plan.spec.to_dict()
    assert {key: wanted[key] for key in spec} == spec

    code, out, _ = edl("describe", plan.metadata.name, "--kind", "ScalePlan")
    assert (code, out.splitlines()[0].startswith("ScalePlan for mnist: ")) == (0, True)
    assert f"  {plan.metadata.name}  Succeeded" in out
    assert (
        _data(edl("describe", plan.metadata.name, "--kind", "ScalePlan", "-o", "json")[1])["spec"] == wanted
    )


def test_a_change_that_takes_too_long_goes_on_and_can_be_cancelled(
    edl: Edl, manifest: Path, cluster: Cluster, stand_in: StandIn
) -> None:
    """When `scale` times out, the plan goes on. The error has the command that shows it, and the one that
    cancels it, which works as it is printed."""
    stand_in.hold = ScalePlanPhase.CHECKPOINTING
    edl("submit", str(manifest))
    edl("wait", "mnist", "--for", "Running", "--timeout", "20")
    code, _, err = edl("scale", "mnist", "worker=50", "--timeout", "1")

    (plan,) = _plans(cluster)
    last = err.splitlines()[-1]
    assert code == 8
    assert f"the plan goes on: `edl describe mnist --namespace {cluster.namespace}` shows it" in last
    found = re.search(r"`edl (delete [^`]*)` cancels it", last)
    assert found is not None, last
    assert found[1].split() == [
        "delete", plan.metadata.name, "--kind", "ScalePlan", "--namespace", cluster.namespace
    ]  # fmt: skip
    code, out, err = edl(*found[1].split(), "--timeout", "20")
    assert (code, _plans(cluster)) == (0, []), err
    assert out == f"ScalePlan {cluster.namespace}/{plan.metadata.name} deleted\n"


def test_suspend_and_resume(edl: Edl, manifest: Path, cluster: Cluster) -> None:
    """`suspend` waits until the job is suspended, `resume` until it runs."""
    edl("submit", str(manifest))
    edl("wait", "mnist", "--for", "Running", "--timeout", "20")
    code, out, err = edl("suspend", "mnist", "--timeout", "20", "-o", "json")
    assert (code, _data(out)["phase"]) == (0, "Suspended"), err
    code, out, err = edl("resume", "mnist", "--timeout", "20", "-o", "json")
    assert (code, _data(out)["phase"]) == (0, "Running"), err


NO_JOB = "/nobody; `edl get -A` lists all"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        pytest.param(["get", "nobody"], 3, NO_JOB, id="no-job"),
        pytest.param(["describe", "nobody"], 3, NO_JOB, id="describe-no-job"),
        pytest.param(["delete", "nobody"], 3, NO_JOB, id="delete-no-job"),
        pytest.param(["delete", "p", "--kind", "ScalePlan"], 3, '"p" not found', id="delete-no-plan"),
        pytest.param(["logs", "nobody"], 3, NO_JOB, id="logs-no-job"),
        pytest.param(["scale", "nobody", "worker=3"], 3, "nobody", id="scale-no-job"),
        pytest.param(["scale", "nobody", "worker=many"], 2, "worker=many", id="no-count"),
        pytest.param(["wait", "nobody", "--timeout", "0.2"], 8, "does not exist yet", id="time-out"),
        pytest.param(["plan", "nobody"], 3, NO_JOB, id="plan-no-job"),
        pytest.param(["timeline", "nobody"], 3, NO_JOB, id="timeline-no-job"),
        pytest.param(["checkpoint", ""], 2, "job", id="checkpoint-no-name"),
        pytest.param(["suspend", ""], 2, "name", id="suspend-no-name"),
        pytest.param(["resume", ""], 2, "name", id="resume-no-name"),
        pytest.param(["delete", ".."], 2, "'..'", id="no-name-at-all"),
        pytest.param(["wait", "x", "--kind", "ScalePlan"], 2, "is not a job", id="wait-for-a-plan"),
        pytest.param(["get", "x", "--kind", "Pod"], 2, "Pod", id="no-kind-of-ours"),
    ],
)
def test_errors_are_one_line_and_a_code(edl: Edl, arguments: list[str], code: int, says: str) -> None:
    """An error gives the documented exit code and one line that names the object."""
    found, out, err = edl(*arguments)

    last = err.strip().splitlines()[-1]
    assert (found, out) == (code, ""), err
    assert last.startswith("edl: ")
    assert says in last


@pytest.mark.parametrize("command", ["describe", "logs", "plan", "delete"])
def test_a_job_of_another_kind_is_named(edl: Edl, cluster: Cluster, command: str) -> None:
    """A name that belongs to a job of another kind is an error that has this kind."""
    client.create(cluster, tf_job("other"))

    code, _, err = edl(command, "other")

    assert code == 3
    assert f"{cluster.namespace}/other is a TFJob: give --kind TFJob" in err


def test_logs_of_a_job_without_pods(edl: Edl, manifest: Path, stand_in: StandIn) -> None:
    """The log of a job that has no pods is an error that names the command which may show why."""
    edl("submit", str(manifest))

    code, _, err = edl("logs", "mnist")

    assert code == 3
    assert "has no pods; `edl describe mnist` may show why" in err


def test_logs_of_a_pod_with_a_sidecar(edl: Edl, cluster: Cluster) -> None:
    """The log of the node's own container is requested; the user does not have to name the container."""
    labels = {names.JOB_LABEL: "mnist", names.REPLICA_TYPE_LABEL: "worker", names.REPLICA_INDEX_LABEL: "0"}
    containers = [{"name": name, "image": "train:1"} for name in ("main", "sidecar")]
    pod = {"metadata": {"name": "w", "labels": labels}, "spec": {"containers": containers}}
    client.create(cluster, {"apiVersion": "v1", "kind": "Pod", **pod})

    code, out, err = edl("logs", "mnist", "worker-0")

    assert (code, out) == (6, "")
    assert "no pod runner serves the logs of pod w" in err, "the container was not accepted"


def test_a_failed_job_fails_the_wait(edl: Edl, manifest: Path, stand_in: StandIn) -> None:
    """Waiting for a job that fails ends at once with the exit code for failed jobs. The list of jobs has the
    reason."""
    edl("submit", str(manifest))
    _, before, _ = edl("get")
    stand_in.end("mnist", "Failed")
    code, _, err = edl("wait", "mnist", "--timeout", "30")

    assert code == 7, err
    _, out, _ = edl("get")
    assert "REASON" not in before
    assert out.splitlines()[0].split()[:4] == ["NAME", "KIND", "PHASE", "REASON"]
    assert out.splitlines()[1].split()[:4] == ["mnist", "ElasticJob", "Failed", "TestSaysSo"]


def test_a_name_that_is_taken(edl: Edl, manifest: Path) -> None:
    """Submitting a job under a name that is taken is a conflict and changes nothing."""
    edl("submit", str(manifest))
    code, _, err = edl("submit", str(manifest))

    assert code == 4
    assert "choose another name" in err


def test_all_kinds_are_listed(edl: Edl, cluster: Cluster) -> None:
    """Without --kind, jobs of all kinds are listed. An invalid job is shown as invalid and does not hide
    others."""
    client.create(cluster, elastic_job("mnist"))
    client.create(cluster, tf_job("old"))
    client.create(cluster, tf_job("wrong", gang=2))
    edl("wait", "mnist", "--for", "Running", "--timeout", "20")

    code, out, err = edl("get")

    assert code == 0, err
    assert [line.split()[:3] for line in out.splitlines()[1:]] == [
        ["mnist", "ElasticJob", "Running"],
        ["old", "TFJob", "Pending"],
        ["wrong", "TFJob", "InvalidSpec"],
    ]
    _, out, _ = edl("get", "wrong", "-o", "json")
    assert _data(out)["kind"] == "TFJob"
    _, out, _ = edl("get", "--kind", "TFJob")
    assert [line.split()[:2] for line in out.splitlines()] == [
        ["NAME", "PHASE"],
        ["old", "Pending"],
        ["wrong", "InvalidSpec"],
    ]
    code, out, err = edl("delete", "wrong", "--kind", "TFJob", "--timeout", "30")
    assert code == 0, err


def test_an_age_is_an_age(edl: Edl, cluster: Cluster) -> None:
    """The age is the time since the job was created, even if the job has ended."""
    client.create(cluster, tf_job("old"))
    times = {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-03T00:00:00Z"}
    client.patch_status(cluster, TF_JOBS, "old", {"phase": "Succeeded", **times})

    _, out, _ = edl("get")

    assert re.fullmatch(r"[0-9]+s|[0-9]m", out.splitlines()[1].split()[-1])


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("edl get mn", ["mnist"]),
        ("edl describe o", []),
        ("edl describe --kind TFJob o", ["old"]),
        ("edl scale mnist w", ["worker="]),
        ("edl logs mnist ps-", ["ps-0"]),
        ("edl get --kind TF", ["TFJob"]),
    ],
)
def test_a_shell_completes_what_is_there(
    edl: Edl, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, server: ApiServerProcess, words: str,
    offered: list[str]
) -> None:  # fmt: skip
    """The shell completes kinds, and names, roles and nodes of jobs."""
    client.create(cluster, elastic_job("mnist"))
    client.create(cluster, tf_job("old"))
    create_ps_pod(cluster, "mnist", node_id=0, rank=0)
    edl("wait", "mnist", "--for", "Running", "--timeout", "20")
    begin, _, rest = words.partition(" ")
    where = f"--kubeconfig {server.kubeconfig} --namespace {cluster.namespace}"
    command, _, last = rest.partition(" ")
    line = f"{begin} {command} {where} {last}"
    monkeypatch.setenv("_EDL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))

    _, out, _ = edl()

    assert out.split() == offered


def test_a_completion_without_a_cluster_is_empty(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Without a cluster, completion prints nothing, in particular no error into the user's command line."""
    monkeypatch.setenv("_EDL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"edl get --kubeconfig {tmp_path}/none m")
    monkeypatch.setenv("COMP_CWORD", "4")

    run([])

    captured = capsys.readouterr()
    assert (captured.out.strip(), captured.err) == ("", "")


def test_get_shows_that_jobs_have_warnings(edl: Edl, cluster: Cluster) -> None:
    """The list has a column for them if there are any: SeparateCopies, or the number of the others."""
    for name in ("copies", "full", "sound"):
        client.create(cluster, elastic_job(name))
    assert "WARNINGS" not in edl("get")[1]
    client.patch_status(cluster, ELASTIC_JOBS, "copies", {"warnings": ["the disk is full", NO_GROUP]})
    client.patch_status(cluster, ELASTIC_JOBS, "full", {"warnings": ["the disk is full"]})

    _, output, _ = edl("get")

    rows = {row.split()[0]: row.split()[-1] for row in output.splitlines()}
    assert rows["NAME"] == "WARNINGS"
    assert (rows["copies"], rows["full"]) == ("SeparateCopies", "1")
    assert rows["sound"] not in ("SeparateCopies", "1")
