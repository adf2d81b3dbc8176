"""The registry of policies that can be simulated."""

import re
from pathlib import Path

import pytest

import edl_workflows
from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.policies import POLICIES
from edl_workflows.simulator.schedulers.catalog import SCHEDULERS, SimulatedPolicy, simulated_policy
from edl_workflows.simulator.schedulers.scheduler import SchedulerInputs
from tests.cases.policies import NODES, Decision, make_active


def test_every_scheduler_has_a_row() -> None:
    """Each class that is named as a scheduler makes the decisions of a policy, or is a base of others."""
    folder = Path(edl_workflows.__file__).parent / "simulator"
    found = {
        name
        for file in folder.rglob("*.py")
        for name in re.findall(r"^class ([A-Z]\w*Scheduler)\b", file.read_text(), re.MULTILINE)
    }
    named = {type(entry.make(SchedulerInputs())).__name__ for entry in SCHEDULERS}

    assert found - {"JobScheduler", "FixedBatchScheduler"} == named, (
        "each scheduler needs a row in SCHEDULERS of simulator/schedulers/catalog.py"
    )


def test_live_policies_come_first() -> None:
    """Users find all live policies among those that can be simulated, first and with the same summaries. Each
    name is that of one policy."""
    live = [(entry.name, entry.summary) for entry in POLICIES]

    assert [(entry.name, entry.summary) for entry in SCHEDULERS[: len(live)]] == live
    assert len({entry.name for entry in SCHEDULERS}) == len(SCHEDULERS)


@pytest.mark.parametrize("entry", SCHEDULERS, ids=lambda entry: entry.name)
def test_every_row_has_a_summary_and_a_scheduler(entry: SimulatedPolicy) -> None:
    """The summary is a clause that help texts end with a full stop; the simulator runs every policy."""
    assert entry.summary
    assert not entry.summary.endswith("."), "help texts add the full stop"
    assert entry.summary[0].islower(), "the summary is a clause: it begins with a small letter"
    assert callable(simulated_policy(entry.name).make(SchedulerInputs()).schedule)


@pytest.mark.parametrize("entry", SCHEDULERS, ids=lambda entry: entry.name)
def test_a_policy_that_gives_all_or_nothing_is_rigid(entry: SimulatedPolicy) -> None:
    """A job that asks for more GPUs than the cluster has runs under each policy that is not rigid."""
    decision = Decision("", (make_active("a", sum(NODES.values()) + 1),), {})

    assert bool(decision.ask(entry.name)) is not entry.rigid, "a row of such a policy has rigid=True"


def test_an_unknown_policy_is_refused() -> None:
    """The error for an unknown policy names those that can be simulated."""
    names = ", ".join(entry.name for entry in SCHEDULERS)
    with pytest.raises(InvalidError, match=f"there is no policy 'lifo'; use one of {names}$"):
        simulated_policy("lifo")
