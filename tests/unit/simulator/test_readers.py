"""CSV files in the form of the Pollux artifact."""

import re
from pathlib import Path
from statistics import fmean

import pytest

from edl_workflows.core.exceptions import InvalidError, NotFoundError
from edl_workflows.simulator.capacity import FAILURE, CapacityChange
from edl_workflows.simulator.evaluation import PUBLISHED, PUBLISHED_EACH, read_applications, read_evaluation
from edl_workflows.simulator.readers import (
    is_pollux_workload,
    read_application,
    read_cluster_jobs,
    read_failures,
    read_services,
    read_workload,
)
from edl_workflows.simulator.throughput import StepTime
from edl_workflows.simulator.workload import ClusterJob, WorkloadJob

WORKLOAD = "name,time,application,num_replicas,batch_size\n"
PLACEMENTS = "placement,local_bsz,step_time,sync_time\n1,10,1.0,0.0\n12,10,2.0,0.5\n12,20,3.0,0.5\n"
SCALABILITY = "num_nodes,num_replicas,local_bsz,step_time,sync_time\n8,16,10,4.0,1.0\n"
VALIDATION = "progress,iteration,metric,grad_sqr,grad_var\n100.0,100,0.5,1.0,2.0\n200.0,200,0.6,1.0,2.0\n"


def traces(folder: Path) -> Path:
    """The traces of an application."""
    folder.mkdir()
    (folder / "placements.csv").write_text(PLACEMENTS)
    (folder / "scalability.csv").write_text(SCALABILITY)
    (folder / "validation-10.csv").write_text(VALIDATION)
    (folder / "validation-40.csv").write_text(VALIDATION)
    return folder


def test_workload(tmp_path: Path) -> None:
    """Each line is a job."""
    path = tmp_path / "workload-1.csv"
    path.write_text(WORKLOAD + "digits-0,107,digits,6,2048\n")
    assert read_workload(path) == [WorkloadJob("digits-0", 107.0, "digits", 6, 2048)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("a,soon,digits,1,1", "time: 'soon' is not a number of at least 0", id="no number"),
        pytest.param("a,1,digits", "num_replicas: the field is empty", id="too short"),
        pytest.param("a,1,digits,1,1,1", "there are more fields than columns", id="too long"),
        pytest.param("a,nan,digits,1,1", "time: 'nan' is not a number of at least 0", id="not a number"),
        pytest.param("a,1,digits,0,1", "num_replicas: '0' is not a whole number of at least 1", id="none"),
        pytest.param(
            "a,1,digits,1,-4", "batch_size: '-4' is not a whole number of at least 1", id="negative"
        ),
        pytest.param(" ,1,digits,1,4", "name: the field is empty", id="no name"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    """The error names file, line and field."""
    path = tmp_path / "workload-1.csv"
    path.write_text(f"{WORKLOAD}a,1,digits,1,1\n{line}\n")
    with pytest.raises(InvalidError, match=rf"workload-1\.csv:3: {re.escape(message)}"):
        read_workload(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", ":1: the file is empty", id="empty"),
        pytest.param(
            b"name,when\na,1\n", ":1: there is no column time, only name, when", id="a column is missing"
        ),
        pytest.param(b"name,time\n\xff\xfe\n", "not CSV in UTF-8", id="not UTF-8"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    """A file that is no table of jobs is rejected by its name."""
    path = tmp_path / "workload-1.csv"
    path.write_bytes(content)
    with pytest.raises(InvalidError, match=re.escape(message)):
        read_workload(path)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    """A folder in place of a file gives a message, not a traceback."""
    with pytest.raises(InvalidError, match="can't be read"):
        read_workload(tmp_path)


def test_a_missing_file(tmp_path: Path) -> None:
    """A file that does not exist is reported by an error of this package."""
    with pytest.raises(NotFoundError, match=r"workload-9\.csv: there is no such file"):
        read_workload(tmp_path / "workload-9.csv")


def test_application(tmp_path: Path) -> None:
    """Measurements come from three kinds of files; the bounds of the mini-batch follow from the
    measurements."""
    found = read_application(traces(tmp_path / "digits"))

    assert (found.name, found.epochs, found.min_local_bsz, found.max_local_bsz) == ("digits", 2, 10, 20)
    assert (found.init_batch_size, found.max_batch_size) == (10, 40)
    assert found.step_time((1, 2), 15) == StepTime(2.5, 0.5)
    assert found.step_time((2,) * 8, 10) == StepTime(4.0, 1.0)


def test_all_applications(tmp_path: Path) -> None:
    """Each folder is an application; files beside the folders are ignored."""
    traces(tmp_path / "digits")
    (tmp_path / "philly.csv").write_text("")
    assert set(read_applications(tmp_path)) == {"digits"}


def test_an_exchange_can_not_be_longer_than_its_step(tmp_path: Path) -> None:
    """A measured exchange that is longer than its step is rejected."""
    folder = traces(tmp_path / "digits")
    (folder / "placements.csv").write_text(PLACEMENTS + "2,10,1.0,2.0\n")
    with pytest.raises(InvalidError, match=r"placements\.csv:5: sync_time: .*longer than the step"):
        read_application(folder)


def test_a_folder_without_traces(tmp_path: Path) -> None:
    """The error for a folder without traces says which files are expected."""
    with pytest.raises(NotFoundError, match=r"no validation-\*\.csv"):
        read_application(tmp_path)


def test_a_validation_without_epochs(tmp_path: Path) -> None:
    """An application without a measured training is rejected."""
    folder = traces(tmp_path / "digits")
    for path in folder.glob("validation-*.csv"):
        path.write_text(VALIDATION.splitlines()[0] + "\n")
    with pytest.raises(InvalidError, match="application digits: its trainings have"):
        read_application(folder)


def test_a_validation_of_no_batch(tmp_path: Path) -> None:
    """The name of a validation file must contain the batch size."""
    folder = traces(tmp_path / "digits")
    (folder / "validation-new.csv").write_text(VALIDATION)
    with pytest.raises(InvalidError, match="'new' is not a batch size"):
        read_application(folder)


def test_the_evaluation(tmp_path: Path) -> None:
    """The name of a workload contains its file, and its group the load."""
    (tmp_path / "traces").mkdir()
    traces(tmp_path / "traces" / "digits")
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "workload-2.csv").write_text(WORKLOAD + "digits-0,107,digits,6,2048\n")

    [found] = read_evaluation(tmp_path, [1.0], [2])

    assert (found.name, found.group, len(found.jobs)) == ("workloads/workload-2", "load 1", 1)


@pytest.mark.parametrize("load", PUBLISHED_EACH)
def test_published_figures_agree(load: float) -> None:
    """The mean over the workloads is the published mean."""
    assert fmean(PUBLISHED_EACH[load]) == pytest.approx(PUBLISHED["pollux"][load], abs=1)


@pytest.mark.parametrize(
    ("loads", "numbers", "message"), [([0.7], [1], "no load 0.7"), ([1.0], [9], "no workload 9")]
)
def test_an_evaluation_that_is_not(
    tmp_path: Path, loads: list[float], numbers: list[int], message: str
) -> None:
    """Loads and workloads that were not published are rejected."""
    with pytest.raises(InvalidError, match=message):
        read_evaluation(tmp_path, loads, numbers)


CLUSTER_JOBS = """job_id,submit_time,num_gpus,duration,status,vc
late,2017-10-09 07:01:00,4,60.5,Pass,11cb48
early,2017-10-09 07:00:00,1,100,Killed,11cb48
"""


def written(tmp_path: Path, text: str) -> Path:
    """A file of jobs."""
    path = tmp_path / "philly.csv"
    path.write_text(text)
    return path


def test_cluster_jobs(tmp_path: Path) -> None:
    """Times are counted from the submission of the first job; other columns are ignored."""
    path = written(tmp_path, CLUSTER_JOBS)

    assert read_cluster_jobs(path) == [ClusterJob("late", 60.0, 4, 60.5), ClusterJob("early", 0.0, 1, 100.0)]
    assert [job.name for job in read_cluster_jobs(path, ["Pass"])] == ["late"]
    assert not is_pollux_workload(path)


def test_other_names_of_columns(tmp_path: Path) -> None:
    """The artifact's trace has columns without names. Times in seconds and a byte order mark are accepted."""
    path = written(tmp_path, "\ufefftimestamp,gpus,duration\n100,2,5\n130.5,1,6\n")
    assert read_cluster_jobs(path) == [ClusterJob("job-2", 0.0, 2, 5.0), ClusterJob("job-3", 30.5, 1, 6.0)]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param("c,yesterday,1,60,Pass,x", "submit_time: 'yesterday' is neither a date", id="time"),
        pytest.param("c,2017-10-09 07:01:00,0,60,Pass,x", "num_gpus: '0' is not a whole number", id="gpus"),
        pytest.param(
            "c,2017-10-09 07:01:00,1,-5,Pass,x", "duration: '-5' is not a number above 0", id="duration"
        ),
        pytest.param("c,2017-10-09 07:01:00,1,inf,Pass,x", "duration: 'inf' is not a number", id="endless"),
        pytest.param(",2017-10-09 07:01:00,1,60,Pass,x", "job_id: the field is empty", id="name"),
    ],
)
def test_a_bad_job_is_named(tmp_path: Path, line: str, message: str) -> None:
    """An invalid job is reported with file, line and field."""
    with pytest.raises(InvalidError, match=rf"philly\.csv:4: {re.escape(message)}"):
        read_cluster_jobs(written(tmp_path, f"{CLUSTER_JOBS}{line}\n"))


def test_no_job_is_left(tmp_path: Path) -> None:
    """If no job of the trace has the requested status, the error says so."""
    with pytest.raises(InvalidError, match="no job with a status of Passed"):
        read_cluster_jobs(written(tmp_path, CLUSTER_JOBS), ["Passed"])


NODES = {"node-000": 4, "node-001": 4}


def test_failures(tmp_path: Path) -> None:
    """Each line is a node that fails and comes back."""
    path = written(tmp_path, "time,node,seconds\n600,1,60\n60,0,600\n")
    assert read_failures(path, NODES) == [
        CapacityChange(60, "node-000", FAILURE, 4),
        CapacityChange(600, "node-001", FAILURE, 4),
        CapacityChange(660, "node-000", FAILURE, 0),
        CapacityChange(660, "node-001", FAILURE, 0),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("60,2,60", "node: '2' is not a number from 0 to 1"),
        ("60,0.5,60", "node: '0.5' is not a number from 0 to 1"),
        ("190,0,0", "seconds: '0' is not a number above 0"),
        ("90,0,10", "time: the node is away until 120 s"),
    ],
)
def test_a_bad_failure_is_named(tmp_path: Path, line: str, message: str) -> None:
    """The error for a failure of a node that does not exist, or that is already down, names the line."""
    with pytest.raises(InvalidError, match=rf"philly\.csv:3: {re.escape(message)}"):
        read_failures(written(tmp_path, f"time,node,seconds\n60,0,60\n{line}\n"), NODES)


def test_services(tmp_path: Path) -> None:
    """A file without names describes one service, and one with names several, each in chronological order."""
    assert read_services(written(tmp_path, "time,gpus\n90,4\n0,8\n")) == {"service": [(0.0, 8), (90.0, 4)]}
    named = read_services(written(tmp_path, "time,service,gpus\n0,web,8\n0,db,1\n"))
    assert named == {"web": [(0.0, 8)], "db": [(0.0, 1)]}


def test_a_service_takes_whole_gpus(tmp_path: Path) -> None:
    """A service with half a GPU is rejected."""
    with pytest.raises(InvalidError, match=r"philly\.csv:2: gpus: '0\.5' is not a whole number"):
        read_services(written(tmp_path, "time,gpus\n0,0.5\n"))
