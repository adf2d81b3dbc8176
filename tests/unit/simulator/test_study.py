"""Studies: their identity, their stored results and their summaries."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.pollux.goodput_fit import FitCache
from edl_workflows.simulator.capacity import FAILURE, CapacityChange
from edl_workflows.simulator.cluster import SimulationSettings
from edl_workflows.simulator.metrics import RunMetrics
from edl_workflows.simulator.schedulers.catalog import SCHEDULERS
from edl_workflows.simulator.store import ResultFile
from edl_workflows.simulator.study import Study, StudyResult, StudySummary, Workload, summarize_results
from tests.unit.simulator.builders import application, job

WORKLOAD = Workload("w", "load 1", [job("a", replicas=2), job("b", 5)], {"digits": application()}, {})
STUDY = Study(WORKLOAD, "fulfilment", 0, SimulationSettings(nodes=1))
METRICS = RunMetrics(100.0, 90.0, 120.0, 150.0, 0.5, 1.0, 0.0, 2, 0)


def result(workload: str, jct: float, policy: str = "pollux", seed: int = 0) -> StudyResult:
    """A result with this mean."""
    key = {"workload": workload, "jobs": "", "policy": policy, "seed": seed, "settings": {}}
    return StudyResult(key, "load 1", replace(METRICS, jct_mean=jct))


def test_the_same_study_has_the_same_key() -> None:
    """A study has the same key if its jobs are listed in another order."""
    other = replace(STUDY, workload=replace(WORKLOAD, jobs=WORKLOAD.jobs[::-1]))
    assert STUDY.key == other.key == json.loads(json.dumps(STUDY.key))


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(replace(STUDY, policy="fit"), id="policy"),
        pytest.param(replace(STUDY, seed=1), id="seed"),
        pytest.param(replace(STUDY, settings=SimulationSettings(nodes=2)), id="cluster"),
        pytest.param(
            replace(
                STUDY,
                settings=SimulationSettings(nodes=1, changes=[CapacityChange(0, "node-000", FAILURE, 4)]),
            ),
            id="failures",
        ),
        pytest.param(
            replace(STUDY, workload=replace(WORKLOAD, jobs=[job("a", replicas=2), job("b", 6)])), id="jobs"
        ),
    ],
)
def test_another_study_has_another_key(other: Study) -> None:
    """The key depends on everything that affects the result."""
    assert other.key != STUDY.key


@pytest.mark.parametrize("policy", [entry.name for entry in SCHEDULERS])
def test_every_policy_completes_all_jobs(policy: str) -> None:
    """With each policy, all jobs complete on one node with four GPUs."""
    found = StudyResult.of(replace(STUDY, policy=policy), replace(STUDY, policy=policy).run(FitCache()))
    assert (found.metrics.jobs, found.metrics.unfinished, found.group) == (2, 0, "load 1")


def test_an_unknown_policy() -> None:
    """The error for an unknown policy names the policies."""
    with pytest.raises(InvalidError, match="no policy 'lifo'; use one of fit, pollux"):
        replace(STUDY, policy="lifo").run(FitCache())


def test_a_job_that_never_fits() -> None:
    """With a policy that gives all or nothing, a job that never fits is reported instead of waiting for
    ever."""
    study = replace(STUDY, policy="tiresias", settings=SimulationSettings(nodes=1, node_gpus=1))
    with pytest.raises(InvalidError, match="w: job a asks for 2 GPUs"):
        study.run(FitCache())


def test_results_survive_json() -> None:
    """Results, including values that are not finite, are the same after they were written and read as
    JSON."""
    lost = replace(result("w", 1.0), metrics=replace(METRICS, jct_mean=math.nan))
    assert math.isnan(StudyResult.parse(json.loads(json.dumps(lost.to_json()))).metrics.jct_mean)
    assert StudyResult.parse(result("w", 1.0).to_json()) == result("w", 1.0)


@pytest.mark.parametrize(
    "value",
    [{}, [], None, {"key": {}, "group": "", "metrics": {}}, result("w", 1.0).to_json() | {"metrics": 1}],
)
def test_what_is_no_result(value: object) -> None:
    """A value that is not a result of a simulation is rejected."""
    with pytest.raises(InvalidError, match="not the result of a simulation"):
        StudyResult.parse(value)


def test_summaries() -> None:
    """The summary has mean and spread of each group and policy. The published mean is given only if all of
    its workloads were run."""
    runs = [result("w1", 90.0), result("w2", 110.0), result("w1", 50.0, "fit")]
    published = {("load 1", "pollux"): (2, 125.0), ("load 1", "fit"): (2, 125.0)}

    first, second = summarize_results(runs, published)

    assert first == StudySummary("load 1", "pollux", 2, 100.0, pytest.approx(14.142, rel=1e-3), 125.0)  # type: ignore[arg-type]
    assert first.ratio == pytest.approx(-0.2)
    assert (second.published, second.ratio, second.jct_spread) == (None, None, 0.0)


def test_a_file_of_results(tmp_path: Path) -> None:
    """A result that was added is there when the file is opened again."""
    path = tmp_path / "new" / "results.jsonl"
    file = ResultFile(path)
    assert file.find(result("w", 1.0).key) is None
    file.add(result("w", 1.0))
    file.add(result("v", 2.0))

    assert file.find(result("w", 1.0).key) == result("w", 1.0)
    assert ResultFile(path).find(result("v", 2.0).key) == result("v", 2.0)


def test_a_torn_line_is_made_again(tmp_path: Path) -> None:
    """A partial line that a killed process left at the end does not damage the file."""
    path = tmp_path / "results.jsonl"
    ResultFile(path).add(result("w", 1.0))
    path.write_bytes(path.read_bytes() + b'{"key": {"work')

    again = ResultFile(path)
    again.add(result("v", 2.0))

    assert ResultFile(path).find(result("v", 2.0).key) == result("v", 2.0)
    assert len(path.read_bytes().splitlines()) == 2


def test_another_file_is_refused(tmp_path: Path) -> None:
    """The error names the line that is not a result, and the file is not changed."""
    path = tmp_path / "notes.txt"
    path.write_text("important\n")
    with pytest.raises(InvalidError, match=r"notes\.txt:1:"):
        ResultFile(path)
    assert path.read_text() == "important\n"


def test_a_folder_is_no_file_of_results(tmp_path: Path) -> None:
    """A folder in place of the file of results is an error that says so."""
    with pytest.raises(InvalidError, match="can't be read"):
        ResultFile(tmp_path)
