"""The registry of live policies."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import edl_workflows
from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.policies import POLICIES, LivePolicy, policy_of


def test_names_are_unique() -> None:
    """Each name is that of one policy."""
    assert len({entry.name for entry in POLICIES}) == len(POLICIES)


def test_every_policy_has_a_row() -> None:
    """Each class that is named as a policy has a row for users."""
    folder = Path(edl_workflows.__file__).parent / "core" / "scaling"
    found = {
        name
        for file in folder.rglob("*.py")
        for name in re.findall(r"^class ([A-Z]\w*Policy)\b", file.read_text(), re.MULTILINE)
    }
    named = {entry.location.rpartition(":")[2] for entry in POLICIES}

    assert found - {"Policy", "LivePolicy"} == named, (
        "each policy needs a row in POLICIES of core/scaling/policies.py"
    )


@pytest.mark.parametrize("entry", POLICIES, ids=lambda entry: entry.name)
def test_a_live_policy_answers_both_questions(entry: LivePolicy) -> None:
    """A live policy also answers if there are no jobs and no nodes. `tests.property.test_policies` tests its
    promises."""
    assert policy_of(entry.name).optimize({}, {}, {}) == {}


@pytest.mark.parametrize("entry", POLICIES, ids=lambda entry: entry.name)
def test_a_row_names_a_class_of_the_core(entry: LivePolicy) -> None:
    """A row's class is in `core.scaling`, which imports nothing of the simulator."""
    assert entry.location.startswith("edl_workflows.core.scaling.")


@pytest.mark.parametrize("name", ["lifo", "optimus"], ids=["unknown", "not live"])
def test_a_policy_that_no_controller_can_use_is_refused(name: str) -> None:
    """The error for a policy that no controller can use, as one of the simulator, names those that it can
    use."""
    names = ", ".join(entry.name for entry in POLICIES)
    with pytest.raises(InvalidError, match=f"no policy '{name}'; use one of {names}$"):
        policy_of(name)


def test_the_registry_imports_no_policy() -> None:
    """The registry imports no policy, so that a controller with first-fit does not load numpy."""
    code = "import sys; from edl_workflows.core.scaling.policies import policy_of\n"
    code += "policy_of('fit'); print('numpy' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
