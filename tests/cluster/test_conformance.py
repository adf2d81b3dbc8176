"""What the embedded API server promises is what a real one does: the same cases run against the cluster's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.bed.bed import Bed

_CASES = Path(__file__).parents[1] / "conformance"


@pytest.mark.timeout(900)
def test_real_api_server_keeps_the_same_promises(bed: Bed) -> None:
    """Every case passes except those that only the embedded server promises, which
    docs/reference/embedded-cluster.md lists."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(_CASES)]
    env = os.environ | {"EDL_CONFORMANCE_KUBECONFIG": str(bed.kubeconfig)}

    done = subprocess.run(command, env=env, cwd=_CASES.parents[1], capture_output=True, text=True)

    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
