"""What a model says before and after a switch, told to a master that speaks real HTTP."""

from collections.abc import Callable

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.nodes import CLUSTER_LOST_EXIT_CODE
from edl_workflows.core.protocol.training import CheckpointBegin, Evaluation, ModelReport
from edl_workflows.training import job as job_module
from edl_workflows.training.checkpoints.restoring import run_evaluation
from edl_workflows.training.client import MasterClient
from edl_workflows.training.environment import NodeEnvironment
from edl_workflows.training.job import Job
from tests.unit.training.fake_master import TOKEN, FakeMaster, cluster, eventually

SAVED = CheckpointRef(uri="/c/checkpoint-5", step=5)


def fails() -> float:
    """An evaluation that finds nothing."""
    raise InvalidError("no batch was kept")


@pytest.mark.parametrize(
    ("evaluate", "expected"),
    [
        (lambda: 0.5, Evaluation(value=0.5)),
        (lambda: float("nan"), Evaluation(problem="the evaluation returned nan")),
        (fails, Evaluation(problem="no batch was kept")),
        (lambda: 1 / 0, Evaluation(problem="division by zero")),
    ],
    ids=["number", "no finite number", "nothing to compare", "a fault of the program"],
)
def test_evaluation_is_a_number_or_says_why_not(evaluate: Callable[[], float], expected: Evaluation) -> None:
    """Whatever a program's evaluation does, the result is a number or a reason, and training continues."""
    assert run_evaluation(evaluate) == expected


def test_model_is_asked_for_the_checkpoints_of_plans_only(
    master: FakeMaster, environment: NodeEnvironment
) -> None:
    """A periodic checkpoint causes no evaluation. A checkpoint for a plan starts with one."""
    master.say(active=cluster(1, restore=SAVED))
    asked: list[float] = []

    def evaluate() -> float:
        asked.append(0.25)
        return asked[-1]

    with Job(environment, 1, MasterClient(master.url, TOKEN)) as job:
        job.wait_until_active()
        job.save_with(lambda: SAVED)
        job.compare_model(evaluate)
        assert master.got(ModelReport)[0].evaluation == Evaluation(value=0.25), "the restored model"
        assert len(asked) == 1
        assert job.checkpoint() == SAVED
        assert len(asked) == 1
        master.say(save="plan-checkpoint")
        eventually(job.should_checkpoint)
        job.between_steps()
    periodic, wanted = master.got(CheckpointBegin)[:2]
    assert periodic.evaluation is None
    assert wanted.evaluation == Evaluation(value=0.25)


def test_process_whose_model_is_refused_does_not_train(
    master: FakeMaster, environment: NodeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the master says that the model differs from the one before the switch, the process ends without
    training."""
    monkeypatch.setattr(job_module, "CLUSTER_LOST_SECONDS", 0.1)
    master.say(active=cluster(1, restore=SAVED))
    master.refuses_model = "the model said 0.5 before the switch, and 0.9 after it"
    with Job(environment, 1, MasterClient(master.url, TOKEN)) as job:
        job.wait_until_active()
        with pytest.raises(SystemExit) as ended:
            job.compare_model(lambda: 0.9)
    assert ended.value.code == CLUSTER_LOST_EXIT_CODE
