"""The same inputs have the same results everywhere, to the last bit.

The digests were recorded on one machine. They change with the policies, not with the machine, nor with the versions of Python and
NumPy: where the test fails after a change that should not have changed a decision, the change is wrong.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping

import numpy as np
import pytest

from edl_workflows.simulator.policies import POLICIES
from tests.unit.simulator.fixed_day import digests

RECORDED = {
    "fit": "a5a7ec3845a7a957",
    "fulfilment": "f02cbfa9909abcd0",
    "optimus": "3d1b0b225f0dcd17",
    "pollux": "df2dd2c051a3241b",
    "pollux-history": "a5c7f75448f81de5",
    "shortest": "75774f8e78d76ded",
    "shortest-history": "1aad950b02af0e3d",
    "tiresias": "2731f413aee4604d",
    "paddle": "9d60450cdd2d10d2",
    "failures": "3599db93eea7a6fe",
    "fits": "b612350f4425daea",
}
"""What is computed → its digest; see `tests.unit.simulator.fixed_day`."""


@pytest.fixture(scope="module")
def here() -> dict[str, str]:
    """The digests of this process."""
    return digests()


def test_every_policy_is_recorded() -> None:
    """A new policy needs a digest."""
    assert set(POLICIES) <= set(RECORDED)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_digest_is_found_again(here: Mapping[str, str], name: str) -> None:
    """Each policy's simulated day, and the parts that it is made of, as they were recorded."""
    assert here[name] == RECORDED[name]


VECTORS: list[str] = np.show_config("dicts")["SIMD Extensions"].get("found", [])
"""The CPU's instructions beyond the least that NumPy needs, the older ones first."""


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
    """Without the CPU's vector instructions, with BLAS for another CPU and other threads, with hashes of another seed."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.unit.simulator.fixed_day"]
    found = subprocess.run(command, env=os.environ | machine, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == here
