"""The optimizer process: its advice, and its failures."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import EdlError, UnavailableError
from edl_workflows.core.protocol.brain import OptimizeRequest
from edl_workflows.core.scaling.dlrover.brain import algorithms
from edl_workflows.core.scaling.dlrover.brain.messages import question_of
from edl_workflows.services.brain import optimizer_process
from edl_workflows.services.brain.history import AdviceInputs
from edl_workflows.services.brain.optimizer_process import OptimizerProcess
from edl_workflows.services.brain.store.records import JobReport
from edl_workflows.services.brain.store.store import BrainStore
from tests.unit.services.brain import support
from tests.unit.services.brain.support import facts, sample

sqlite_store = support.sqlite_store
NOW = 1_000_000.0


def asked() -> OptimizeRequest:
    """A request for a job with a parameter server and two workers."""
    job = facts()
    nodes = [
        {"name": f"mnist-edljob-{role}-{i}", "role": role, "id": i, "resource": {"cpu": 4, "memory": 8_192}}
        for role, said in job.roles.items()
        for i in range(said.count)
    ]
    return OptimizeRequest.model_validate(
        {"job": job, "stage": "job_stage_running", "phase": "stable", "nodes": nodes}
    )


@pytest.fixture
def optimizer(sqlite_store: BrainStore, tmp_path: Path) -> Iterator[OptimizerProcess]:
    """An optimizer process for a store with samples of a job."""
    sqlite_store.record(JobReport(facts(), [sample(NOW - 15.0 * i, 100 - i) for i in range(4)]), NOW)
    made = OptimizerProcess(f"sqlite:///{tmp_path}/brain.db")
    yield made
    made.close()


@pytest.mark.slow
def test_it_advises_and_is_replaced(
    optimizer: OptimizerProcess, sqlite_store: BrainStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process gives the advice of the algorithms. If it is killed or takes too long, one caller is told
    to retry, and a new process gives the next advice."""
    histories = AdviceInputs(sqlite_store)
    expected = algorithms.optimize_job(question_of(asked()), histories.request(asked(), NOW))
    assert optimizer.optimize(asked(), NOW) == expected
    assert not expected.empty

    process = optimizer._process
    assert process is not None
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(240)
    with pytest.raises(UnavailableError, match="ended"):
        optimizer.optimize(asked(), NOW)
    assert optimizer.optimize(asked(), NOW) == expected

    assert optimizer._process is not None
    assert optimizer._process.pid is not None
    os.kill(optimizer._process.pid, signal.SIGSTOP)  # it answers nothing, however fast the machine is
    monkeypatch.setattr(optimizer_process, "ADVICE_SECONDS", 0.0)
    with pytest.raises(UnavailableError, match="too long"):
        optimizer.optimize(asked(), NOW)
    assert optimizer._process is None


@pytest.mark.slow
def test_a_store_that_is_away(tmp_path: Path) -> None:
    """If the store is unavailable, the request fails, but the process continues."""
    lost = OptimizerProcess(f"sqlite:///{tmp_path}/nowhere/brain.db")
    try:
        with pytest.raises(UnavailableError, match="store"):
            lost.optimize(asked(), NOW)
        assert lost._process is not None
    finally:
        lost.close()


def test_a_defect_fails_one_request(sqlite_store: BrainStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error fails one request with a pointer to the log, and the process continues."""

    def defect(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(algorithms, "optimize_job", defect)
    answer = optimizer_process._answer(AdviceInputs(sqlite_store), asked(), NOW)
    assert isinstance(answer, EdlError)
    assert "ZeroDivisionError; see the server's log" in str(answer)
