"""The registry of policies."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import edl_workflows
from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.policies import POLICIES, PolicyEntry, live_policies, policy_of
from edl_workflows.simulator.schedulers.scheduler import SchedulerInputs, make_scheduler


def test_names_are_unique() -> None:
    """Each name is that of one policy."""
    assert len({entry.name for entry in POLICIES}) == len(POLICIES)


def test_every_policy_has_a_row() -> None:
    """Each class that is named as a policy or a scheduler has a row for users, or is a base of others."""
    package = Path(edl_workflows.__file__).parent
    files = (file for folder in ("core/scaling", "simulator") for file in (package / folder).rglob("*.py"))
    found = {
        name
        for file in files
        for name in re.findall(r"^class ([A-Z]\w*(?:Policy|Scheduler))\b", file.read_text(), re.MULTILINE)
    }
    named = {made.rpartition(":")[2] for entry in POLICIES for made in (entry.policy, entry.scheduler)}
    bases = {"Policy", "JobScheduler", "FixedBatchScheduler", "PolicyScheduler"}

    assert found - bases == named - {""}, "each policy needs a row in POLICIES of core/scaling/policies.py"


@pytest.mark.parametrize("entry", POLICIES, ids=lambda entry: entry.name)
def test_every_row_has_a_summary_and_a_scheduler(entry: PolicyEntry) -> None:
    """The summary is a clause that help texts end with a full stop; the simulator runs every policy."""
    assert entry.summary
    assert not entry.summary.endswith("."), "help texts add the full stop"
    assert entry.summary[0].islower(), "the summary is a clause: it begins with a small letter"
    assert callable(make_scheduler(entry.name, SchedulerInputs()).schedule)


@pytest.mark.parametrize("entry", live_policies(), ids=lambda entry: entry.name)
def test_a_live_policy_answers_both_questions(entry: PolicyEntry) -> None:
    """A live policy also answers if there are no jobs and no nodes. `tests.property.test_policies` tests its
    promises."""
    assert policy_of(entry.name).optimize({}, {}, {}) == {}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("lifo", "there is no policy 'lifo'; use one of fit, pollux", id="unknown"),
        pytest.param("optimus", "in the simulator only; use one of fit, pollux, shortest", id="not live"),
    ],
)
def test_a_policy_that_no_controller_can_use_is_refused(name: str, message: str) -> None:
    """The error for a policy that only the simulator has names those that the controller can use."""
    with pytest.raises(InvalidError, match=message):
        policy_of(name)


def test_the_registry_imports_no_policy() -> None:
    """The registry imports no policy, so that a controller with first-fit does not load numpy."""
    code = "import sys; from edl_workflows.core.scaling.policies import policy_of\n"
    code += "policy_of('fit'); print('numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
