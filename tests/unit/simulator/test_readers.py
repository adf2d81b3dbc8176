"""CSV files in the form of the Pollux artifact."""

from pathlib import Path

import pytest

from edl_workflows.exceptions import InvalidError, NotFoundError
from edl_workflows.simulator.evaluation import read_applications
from edl_workflows.simulator.readers import read_application, read_trace, read_workload
from edl_workflows.simulator.throughput import StepTime
from edl_workflows.simulator.workload import TraceJob, WorkloadJob

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
    """A line is a job."""
    path = tmp_path / "workload-1.csv"
    path.write_text(WORKLOAD + "digits-0,107,digits,6,2048\n")
    assert read_workload(path) == [WorkloadJob("digits-0", 107.0, "digits", 6, 2048)]


@pytest.mark.parametrize(
    "line", ["a,soon,digits,1,1", "a,1,digits", "a,nan,digits,1,1", "a,1,digits,0,1", "a,1,digits,1,-4"]
)
def test_a_bad_line_is_named(tmp_path: Path, line: str) -> None:
    """What can't be read is said with its file and line."""
    path = tmp_path / "workload-1.csv"
    path.write_text(f"{WORKLOAD}a,1,digits,1,1\n{line}\n")
    with pytest.raises(InvalidError, match=r"workload-1\.csv, line 3"):
        read_workload(path)


def test_a_missing_file(tmp_path: Path) -> None:
    """It is an answer of its own."""
    with pytest.raises(NotFoundError, match=r"workload-9\.csv: there is no such file"):
        read_workload(tmp_path / "workload-9.csv")


def test_application(tmp_path: Path) -> None:
    """Measurements come from three kinds of files; bounds of the mini-batch from what was measured."""
    found = read_application(traces(tmp_path / "digits"))

    assert (found.name, found.epochs, found.min_local_bsz, found.max_local_bsz) == ("digits", 2, 10, 20)
    assert (found.init_batch_size, found.max_batch_size) == (10, 40)
    assert found.step_time((1, 2), 15) == StepTime(2.5, 0.5)
    assert found.step_time((2,) * 8, 10) == StepTime(4.0, 1.0)


def test_all_applications(tmp_path: Path) -> None:
    """Each folder is one; files beside them are left alone."""
    traces(tmp_path / "digits")
    (tmp_path / "philly.csv").write_text("")
    assert set(read_applications(tmp_path)) == {"digits"}


def test_an_exchange_can_not_be_longer_than_its_step(tmp_path: Path) -> None:
    """Contradictory measurements are refused."""
    folder = traces(tmp_path / "digits")
    (folder / "placements.csv").write_text(PLACEMENTS + "2,10,1.0,2.0\n")
    with pytest.raises(InvalidError, match=r"placements\.csv, line 5: .*longer than the step"):
        read_application(folder)


def test_a_folder_without_traces(tmp_path: Path) -> None:
    """It says which files it looks for."""
    with pytest.raises(NotFoundError, match=r"no validation-\*\.csv"):
        read_application(tmp_path)


def test_trace(tmp_path: Path) -> None:
    """Times of day, durations and GPU time of a real cluster's jobs."""
    path = tmp_path / "philly.csv"
    path.write_text("timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,2,132.0,11cb48\n")
    assert read_trace(path) == [TraceJob(7 * 3600 + 115.0, 66.0, 132.0)]
