"""The Python client, against an API server and a pretending controller."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import InvalidError, JobDisappearedError, JobFailedError, StageTimeoutError
from edl_workflows.core.jobs.elastic_job.from_program import ProgramOptions
from edl_workflows.core.jobs.elastic_job.program import MAX_BYTES, MAX_FILES
from edl_workflows.core.jobs.elastic_job.separate_copies import NO_GROUP
from edl_workflows.core.jobs.view import JobPhase, JobView
from edl_workflows.pipelines.cli.jobs import run
from edl_workflows.pipelines.cli.jobs.run import refuse_copies
from edl_workflows.pipelines.cli.output import say
from edl_workflows.pipelines.client import train
from edl_workflows.pipelines.client.places import Place
from edl_workflows.pipelines.client.train import read_script, submit
from edl_workflows.pipelines.manifests.travelling import function_program
from edl_workflows.pipelines.waiting.observed import ObservedObject
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import CONFIG_MAPS, ELASTIC_JOBS, SCALE_PLANS, Scope
from tests.airflow.support import StandIn


def fit(rate: float, steps: int = 1) -> None:
    """A training function."""
    print(rate * steps)


def test_a_function_becomes_a_job_that_can_be_waited_for(cluster: Cluster, stand_in: StandIn) -> None:
    """The job has the wanted workers and the program; waiting ends when it has succeeded."""
    lines: list[str] = []
    training = train(fit, {"rate": 0.5}, workers=3, on=cluster, image="train:1", notify=lines.append)
    job = client.get(cluster, ELASTIC_JOBS, training.name)
    (config_map,) = client.list_objects(cluster, Scope(CONFIG_MAPS, cluster.namespace)).items
    stand_in.end(training.name)
    outputs = training.wait(60)

    assert training.name.startswith("fit-")
    assert job["spec"]["replicaSpecs"]["worker"]["replicas"] == 3
    assert config_map["metadata"]["ownerReferences"][0]["uid"] == training.handle.uid
    assert outputs.phase == training.status().phase == JobPhase.SUCCEEDED
    assert any("is Running" in line for line in lines)


def test_a_job_that_fails_raises(cluster: Cluster, stand_in: StandIn) -> None:
    """The blocking wait and the one in an event loop raise JobFailedError."""
    training = train(fit, {"rate": 0.5}, on=cluster, image="train:1")
    stand_in.end(training.name, "Failed")
    with pytest.raises(JobFailedError, match=training.name):
        training.wait(60)
    with pytest.raises(JobFailedError, match=training.name):
        asyncio.run(training.wait_async())


def test_stages_are_methods(cluster: Cluster, stand_in: StandIn) -> None:
    """`scale` of the client creates the same plan as a pipeline's stage."""
    training = train(fit, {"rate": 0.5}, on=cluster, image="train:1")
    training.wait_for_step(1, timeout=60)
    assert training.scale(workers=2).phase == "Succeeded"
    (plan,) = client.list_objects(cluster, Scope(SCALE_PLANS, cluster.namespace)).items

    assert plan["spec"]["replicaResourceSpecs"]["worker"]["replicas"] == 2


def test_the_end_of_the_block_cancels(cluster: Cluster, stand_in: StandIn) -> None:
    """A job that has not ended does not outlive an error in the block; one that has ended stays."""
    with pytest.raises(ZeroDivisionError), train(fit, {"rate": 1}, on=cluster, image="train:1") as training:
        raise ZeroDivisionError
    with train(fit, {"rate": 2}, on=cluster, image="train:1") as finished:
        stand_in.end(finished.name)
        finished.wait(60)

    assert client.find(cluster, ELASTIC_JOBS, training.name) is None
    assert client.find(cluster, ELASTIC_JOBS, finished.name) is not None
    with pytest.raises(JobDisappearedError, match="was deleted"):
        training.status()


def test_a_wait_that_takes_too_long(cluster: Cluster, stand_in: StandIn) -> None:
    """If the wait times out, the job continues."""
    training = train(fit, {"rate": 1}, on=cluster, image="train:1")
    with pytest.raises(StageTimeoutError):
        training.wait(0.5)

    assert client.find(cluster, ELASTIC_JOBS, training.name) is not None


def test_a_training_is_watched(
    cluster: Cluster, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """Output that is not a terminal has a line for each change, with its time. Outputs and errors are those
    of `wait`."""
    training = train(fit, {"rate": 0.5}, on=cluster, image="train:1")
    stand_in.end(training.name)
    outputs = training.watch(60)
    lines = capsys.readouterr().out.splitlines()
    failed = train(fit, {"rate": 0.5}, on=cluster, image="train:1")
    stand_in.end(failed.name, "Failed")
    with pytest.raises(JobFailedError, match=failed.name):
        failed.watch(60)

    assert outputs.phase == JobPhase.SUCCEEDED
    assert re.match(r"\d\d:\d\d:\d\d is Succeeded", lines[-1])


def test_a_notebook_shows_a_table(cluster: Cluster, stand_in: StandIn) -> None:
    """In a notebook a training is shown as a table with the job's name and phase."""
    training = train(fit, {"rate": 1}, on=cluster, image="train:1")
    training.wait_for_step(1, timeout=60)
    shown = training._repr_html_()

    assert f">{cluster.namespace}/{training.name}</td>" in shown
    assert ">phase</th>" in shown
    assert ">Running" in shown


def test_a_cluster_needs_an_image(cluster: Cluster) -> None:
    """Without an image, the error says what the image must contain, and nothing is created."""
    with pytest.raises(InvalidError, match="name one that contains edl-workflows"):
        train(fit, {"rate": 1}, on=cluster)

    assert not client.list_objects(cluster, Scope(ELASTIC_JOBS, cluster.namespace)).items


def test_options_that_do_not_exist_are_refused(cluster: Cluster) -> None:
    """Unknown options, unknown frameworks, and script arguments that are not a list are refused, and nothing
    is created."""
    with pytest.raises(InvalidError, match="max_worker"):
        train(fit, {"rate": 1}, on=cluster, image="train:1", max_worker=2)
    with pytest.raises(InvalidError, match="caffe"):
        train(fit, {"rate": 1}, on=cluster, image="train:1", framework="caffe")
    with pytest.raises(InvalidError, match="a list of strings"):
        train("train.py", {"rate": 1}, on=cluster, image="train:1")

    assert not client.list_objects(cluster, Scope(ELASTIC_JOBS, cluster.namespace)).items


def test_separate_copies_are_said_at_submission(cluster: Cluster, tmp_path: Path) -> None:
    """A script whose workers would train separate copies is submitted with a warning, and refused with
    ``strict``; with one worker nothing is said."""
    script, said = tmp_path / "plain.py", list[str]()
    script.write_text("import torch\nloss.backward()\n")
    with pytest.raises(InvalidError, match="SeparateCopies: each worker trains its own copy"):
        train(script, workers=2, on=cluster, image="train:1", strict=True)
    assert not client.list_objects(cluster, Scope(ELASTIC_JOBS, cluster.namespace)).items
    train(script, on=cluster, image="train:1", strict=True, notify=said.append)
    assert said == []
    train(script, workers=2, on=cluster, image="train:1", notify=said.append)
    assert [line.partition(": each")[0] for line in said] == ["warning: SeparateCopies"]


def test_strict_ends_a_job_that_trains_separate_copies() -> None:
    """What only the running job shows is an error, too; other warnings are none."""
    seen = JobView("ElasticJob", "mnist", "default", "uid-1", 1, 1, JobPhase.RUNNING)
    refuse_copies(replace(seen, warnings=("no checkpoint could be saved",)))
    copies = replace(seen, warnings=("another", NO_GROUP))
    with pytest.raises(InvalidError, match="SeparateCopies: each worker"):
        refuse_copies(copies)
    refuse_copies(replace(copies, phase=JobPhase.FAILED))  # that is the error


def test_strict_says_why_it_ends_a_job(
    cluster: Cluster, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """The warning is written before the line about the end. A job that has ended is left alone, and its
    result is shown."""
    training = train(fit, {"rate": 0.5}, on=cluster, image="train:1", notify=say)
    warn(cluster, training.name, NO_GROUP)
    with pytest.raises(InvalidError, match="SeparateCopies"):
        run._follow(training, 60, refuse_copies, to_stderr=True)
    lines = capsys.readouterr().err.splitlines()
    warned = next(at for at, line in enumerate(lines) if "warns: each worker" in line)
    (stopped,) = [at for at, line in enumerate(lines) if line.startswith("stopping ")]
    assert warned < stopped
    assert ": SeparateCopies" in lines[stopped]

    training = train(fit, {"rate": 0.5}, on=cluster, image="train:1", notify=say)
    stand_in.end(training.name)
    training.wait(60)
    warn(cluster, training.name, NO_GROUP)
    outputs = run._follow(training, 60, refuse_copies, to_stderr=True)
    with pytest.raises(InvalidError, match="SeparateCopies"):
        run.refuse_copied_result(outputs)
    assert "stopping" not in capsys.readouterr().err
    assert training.status().phase is JobPhase.SUCCEEDED


def test_a_job_that_somebody_deleted_is_not_stopped(
    cluster: Cluster, stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is left to stop or to suspend; a new job of the same name is somebody else's."""
    training = train(fit, {"rate": 0.5}, on=cluster, image="train:1", notify=say)

    def delete(seen: ObservedObject) -> None:
        if seen is not None:
            client.delete(cluster, ELASTIC_JOBS, training.name)

    with pytest.raises(JobDisappearedError, match="by somebody else before it ended; submit it again"):
        run._follow(training, 60, delete, to_stderr=True)
    said = capsys.readouterr().err
    assert "stopping" not in said
    assert "suspended" not in said


def warn(cluster: Cluster, name: str, warning: str) -> None:
    """The master warns."""
    client.patch_status(cluster, ELASTIC_JOBS, name, {"warnings": [warning]})


def test_a_program_runs_in_the_users_folder_on_the_embedded_cluster(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There a relative path means what it means without a job; a template may say otherwise. On other
    clusters the image decides."""
    monkeypatch.chdir(tmp_path)
    program = function_program(fit, {"rate": 1})
    elsewhere = {"spec": {"containers": [{"workingDir": "/data"}]}}
    local, folders = Place(cluster, folder=tmp_path), []
    for place, template in ((local, {}), (local, elsewhere), (Place(cluster), {})):
        options = ProgramOptions(image="train:1", template=template)
        training = submit(place, program, options, hint="fit", notify=print)
        spec = client.get(cluster, ELASTIC_JOBS, training.name)["spec"]["replicaSpecs"]["worker"]
        folders.append(spec["template"]["spec"]["containers"][0].get("workingDir"))
    assert folders == [str(tmp_path), "/data", None]


def test_a_function_that_cannot_be_called_so_is_refused() -> None:
    """Missing or unknown arguments, or a function without source, are errors before anything is submitted."""
    with pytest.raises(InvalidError, match="JSON values by name"):
        train(fit, ["--rate", "1"])
    with pytest.raises(InvalidError, match="missing a required argument: 'rate'"):
        function_program(fit, {})
    with pytest.raises(InvalidError, match="unexpected keyword argument 'speed'"):
        function_program(fit, {"rate": 1, "speed": 2})
    with pytest.raises(InvalidError, match="fit: arguments are given by name, and 1 is no name"):
        train(fit, {1: 2})  # type: ignore[dict-item]
    made: dict[str, object] = {}
    exec("def made(): ...", made)
    with pytest.raises(InvalidError, match="the source of made is not available"):
        function_program(made["made"], {})  # type: ignore[arg-type]  # a function


def test_modules_beside_the_script_travel_with_it(tmp_path: Path) -> None:
    """The modules beside the script that it imports, directly or indirectly, are part of the program; other
    files are not."""
    files = {
        "train.py": "import helper\nimport numpy\nfrom package import thing\n",
        "helper.py": "from deeper import x\nimport train\n",
        "deeper.py": "x = 1\n",
        "other.py": "y = 1\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    program = read_script(tmp_path / "train.py")

    assert program.main == "train.py"
    assert set(program.files) == {"train.py", "helper.py", "deeper.py"}


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def test_packages_beside_the_script_travel_with_it(tmp_path: Path) -> None:
    """A package, with or without ``__init__.py``, travels with all its Python files if the script, or a
    module that travels, imports it; what the package imports beside the script travels, too. Folders of data,
    other packages and this library don't."""
    write_files(
        tmp_path,
        {
            "train.py": "import models\nfrom tools import pictures\nimport datasets\nimport edl_workflows\n",
            "models.py": "raise AssertionError('Python prefers the package')\n",
            "models/__init__.py": "from .parts import net\nimport shared\n",
            "models/parts/net.py": "SIZE = 3\n",
            "models/.cache/old.py": "import (",
            "models/sizes.json": "{}",
            "tools/pictures.py": "",
            "datasets/pictures.csv": "",
            "shared.py": "",
            "unused/__init__.py": "",
            "edl_workflows/__init__.py": "",
        },
    )

    assert set(read_script(tmp_path / "train.py").files) == {
        "train.py",
        "models/__init__.py",
        "models/parts/net.py",
        "tools/pictures.py",
        "shared.py",
    }


@pytest.mark.parametrize(
    "files",
    [
        pytest.param({"large/a.py": "#" * (MAX_BYTES - 9), "large/b.py": "#" * 99}, id="bytes"),
        pytest.param({f"large/m{number}.py": "" for number in range(MAX_FILES)}, id="files"),
    ],
)
def test_a_package_that_is_too_large_to_travel_is_refused(tmp_path: Path, files: dict[str, str]) -> None:
    """The message names the package's folder, and what to do."""
    write_files(tmp_path, {"train.py": "import large", "large/__init__.py": "", **files})

    with pytest.raises(InvalidError, match="put the package into the image") as caught:
        read_script(tmp_path / "train.py")

    assert str(tmp_path / "large") in str(caught.value)


def test_a_script_with_a_byte_order_mark(tmp_path: Path) -> None:
    """Files that begin with a byte order mark, as some editors write them, are valid Python."""
    for name, text in {"train.py": "import helper\n", "helper.py": "WORD = 'größer'\n"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8-sig")

    assert read_script(tmp_path / "train.py").files == {
        "train.py": "import helper\n",
        "helper.py": "WORD = 'größer'\n",
    }


def test_a_script_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """The message names the file."""
    (tmp_path / "large.py").write_text("#" * (MAX_BYTES + 1))
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'")
    for name, message in (("missing.py", "missing.py"), ("large.py", "large.py"), ("latin.py", "latin.py")):
        with pytest.raises(InvalidError, match=message):
            read_script(tmp_path / name)
