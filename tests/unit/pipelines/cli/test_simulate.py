"""``edl simulate``: scenarios, the user's own traces, and rejected options."""

import json
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.scaling.policies import POLICIES
from edl_workflows.pipelines.cli.root import run
from edl_workflows.simulator.schedulers.catalog import SCHEDULERS
from tests.unit.simulator.test_readers import WORKLOAD, traces

JOBS = """job_id,submit_time,num_gpus,duration,status
a,2017-10-09 07:00:00,4,3600,Pass
b,2017-10-09 07:05:00,2,600,Killed
c,2017-10-09 07:06:00,8,1200,Pass
"""


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A trace of three jobs."""
    path = tmp_path / "mine.csv"
    path.write_text(JOBS)
    return path


def answer(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """The JSON that the command prints."""
    assert run(["simulate", *map(str, arguments), "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_own_trace(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A simulation of the user's own trace has a row for each policy."""
    assert (
        run(["simulate", "--workload", str(jobs), "--nodes", "2", "--policy", "tiresias", "--policy", "fit"])
        == 0
    )
    head, *rows = capsys.readouterr().out.splitlines()

    assert head.split()[:3] == ["WORKLOAD", "POLICY", "SEED"]
    assert [row.split()[:4] for row in rows] == [["mine", "tiresias", "0", "3"], ["mine", "fit", "0", "3"]]


def test_a_trace_in_json(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The JSON has the metrics of each run, and summaries."""
    found = answer(capsys, "--workload", jobs, "--nodes", 2, "--policy", "tiresias", "--status", "Pass")
    [one], [summary] = found["runs"], found["summaries"]

    assert (one["metrics"]["jobs"], one["metrics"]["unfinished"]) == (2, 0)
    assert one["metrics"]["jct_mean"] >= (3600 + 1200) / 2
    assert summary["jct_mean"] == one["metrics"]["jct_mean"]


def test_failures_and_services(jobs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Services delay jobs, failures restart them, and no job is lost."""
    services = tmp_path / "services.csv"
    services.write_text("time,gpus\n0,4\n7200,0\n")
    failures = tmp_path / "failures.csv"
    failures.write_text("time,node,seconds\n600,0,1200\n")
    base = ("--workload", jobs, "--nodes", 2, "--policy", "fulfilment")

    alone, served, failed = (
        answer(capsys, *base, *more)["runs"][0]["metrics"]
        for more in ((), ("--services", services), ("--node-failures", failures))
    )

    assert alone["unfinished"] == served["unfinished"] == failed["unfinished"] == 0
    assert served["jct_mean"] > alone["jct_mean"]
    assert failed["restarts"] > alone["restarts"]


@pytest.mark.slow
def test_seeds_of_failures(jobs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same seed gives the same result, and another seed gives another one."""
    base = ("--workload", jobs, "--policy", "fit", "--node-failures", "0.5")
    first, other = (
        [one["metrics"] for one in answer(capsys, *base, "--seed", seed, "--seed", 7)["runs"]]
        for seed in (1, 2)
    )
    assert first[1] == other[1]
    assert first[0] != other[0]


def test_results_are_kept(jobs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second call runs only studies whose results are not stored."""
    base = ("--workload", jobs, "--results", tmp_path / "results.jsonl", "--policy", "fit")
    first = answer(capsys, *base)
    assert run(["simulate", *map(str, base), "--policy", "tiresias", "-o", "json"]) == 0
    captured = capsys.readouterr()

    assert json.loads(captured.out)["runs"][0] == first["runs"][0]
    assert "1 of 2: mine fit seed 0: already in the file" in captured.err


def test_pictures_are_saved(jobs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command saves pictures of the jobs of each run, and of use and completion times of all runs. It
    saves the figures as JSON."""
    answer(capsys, "--workload", jobs, "--policy", "fit", "--save", tmp_path / "out")

    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "completion-mine.png",
        "jobs-mine-fit-seed-0.png",
        "results.json",
        "use-mine-seed-0.png",
    }
    saved = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [job["name"] for job in saved["jobs"]["mine fit seed 0"]] == ["a", "b", "c"]


def test_paddles_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scenario prints two cases with the published figures."""
    assert run(["simulate", "paddle-mixed", "--save", str(tmp_path)]) == 0
    head, *rows = capsys.readouterr().out.splitlines()

    assert head.split() == ["CASE", "JOBS", "STARTED", "PENDING", "PUBLISHED", "CPU", "PUBLISHED"]
    assert [row.split()[0] for row in rows] == ["autoscaled", "fixed"]
    assert (tmp_path / "paddle-mixed.png").stat().st_size > 0


def test_the_pollux_papers_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each workload is printed with its published figure. The mean of eight is printed only if all of them
    were run."""
    (tmp_path / "traces").mkdir()
    traces(tmp_path / "traces" / "digits")
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "workload-1.csv").write_text(WORKLOAD + "digits-0,107,digits,1,20\n")

    assert run(["simulate", "pollux", "--data", str(tmp_path), "--number", "1"]) == 0
    head, row = capsys.readouterr().out.splitlines()

    assert head.split()[-1] == "PUBLISHED"
    assert (row.split()[0], row.split()[-1]) == ("workloads/workload-1", "2089")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "no workload: give a scenario", id="nothing"),
        pytest.param(["pollux", "--workload", "x.csv"], "no workload: give a scenario", id="both"),
        pytest.param(["pollux"], "give --data", id="no data"),
        pytest.param(["--workload", "missing.csv"], "missing.csv: there is no such file", id="no file"),
        pytest.param(["paddle", "--policy", "fit"], "--policy", id="an option that paddle does not have"),
        pytest.param(["--workload", "mine.csv", "--load", "2"], "--load", id="a load of an own trace"),
        pytest.param(["--workload", "mine.csv", "--interval", "0"], "interval: 0.0", id="no interval"),
        pytest.param(["--workload", "mine.csv", "--node-failures", "-1"], "mean time between", id="no rate"),
        pytest.param(
            ["--workload", "mine.csv", "--nodes", "1", "--policy", "tiresias"], "c asks for 8", id="too big"
        ),
    ],
)
def test_what_is_refused(
    arguments: list[str],
    message: str,
    jobs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Invalid options exit with 2, or 3 for a missing file, and the message says what to do."""
    monkeypatch.chdir(jobs.parent)
    assert run(["simulate", *arguments]) in (2, 3)
    assert message in capsys.readouterr().err


def test_help_explains_every_policy(capsys: pytest.CaptureFixture[str]) -> None:
    """Names and summaries come from the registries. `edl simulate` shows all policies, `edl controller run`
    those for live clusters."""
    assert run(["simulate", "--help"]) == 0
    simulating = "".join(capsys.readouterr().out.split())
    assert run(["controller", "run", "--help"]) == 0
    controlling = "".join(capsys.readouterr().out.split())

    for entry in SCHEDULERS:
        assert f"{entry.name}:" in simulating
        assert (f"{entry.name}:" in controlling) == (entry.name in [policy.name for policy in POLICIES])
