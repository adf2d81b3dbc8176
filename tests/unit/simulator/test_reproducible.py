"""The same inputs have the same results everywhere, to the last bit.

The digests were recorded on one machine. They change with the policies, not with the machine, nor with the
versions of Python and NumPy: where the test fails after a change that should not have changed a decision, the
change is wrong.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import numpy as np
import pytest

from tests.cases.policies import POLICY_CASES
from tests.unit.simulator.fixed_day import digests

RECORDED = {policy: cases.digest for policy, cases in POLICY_CASES.items()} | {
    "paddle": "4f3922ef256ec18e",
    "failures": "e54497565e3e05f6",
    "fits": "b9b0b7b6e5fd0d51",
}
"""What is computed → its digest; see `tests.unit.simulator.fixed_day`."""


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    """The digests of this process."""
    return digests()


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_digest_is_found_again(here: Mapping[str, str], name: str) -> None:
    """The simulated day of each policy, and the parts that it uses, have their recorded digests."""
    assert here[name] == RECORDED[name]


VECTORS: list[str] = np.show_config("dicts")["SIMD Extensions"].get("found", [])
"""The CPU's instructions beyond the least that NumPy needs, the older ones first."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "machine",
    [
        pytest.param(
            {
                "NPY_DISABLE_CPU_FEATURES": " ".join(VECTORS),
                "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4",
                "OPENBLAS_CORETYPE": "Prescott",
                "OPENBLAS_NUM_THREADS": "1",
                "PYTHONHASHSEED": "1",
            },
            id="an old CPU",
        ),
        pytest.param(
            {
                "NPY_DISABLE_CPU_FEATURES": " ".join(VECTORS[1:]),
                "OPENBLAS_CORETYPE": "Haswell",
                "OPENBLAS_NUM_THREADS": "2",
                "PYTHONHASHSEED": "2",
            },
            id="a CPU of 2013",
        ),
    ],
)
def test_another_machine_has_the_same_results(here: Mapping[str, str], machine: Mapping[str, str]) -> None:
    """Results are the same without vector instructions, with BLAS for another CPU, other numbers of threads
    and another hash seed."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.unit.simulator.fixed_day"]
    found = subprocess.run(command, env=os.environ | machine, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == here
