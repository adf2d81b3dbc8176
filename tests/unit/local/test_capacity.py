"""What the embedded cluster admits: no more than the machine carries."""

import os
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.local.capacity import MAX_PODS, PODS_PER_CORE, Capacity
from tests.local_cluster import Settings, cluster
from tests.unit.local.support import Pods, container, eventually

CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("asked", "pods"),
    [
        pytest.param({}, PODS_PER_CORE * CORES, id="default"),
        pytest.param({"cpu": "500"}, PODS_PER_CORE * CORES, id="declared CPUs run nothing"),
        pytest.param({"pods_per_core": 3}, 3 * CORES, id="said"),
        pytest.param({"pods_per_core": 10_000}, MAX_PODS, id="at most"),
    ],
)
def test_pods_are_bounded_by_the_cores_that_there_are(asked: dict[str, int | str], pods: int) -> None:
    """The number of pods depends on the machine's cores, not on the CPU that is declared, and has an upper
    limit."""
    capacity = Capacity.of_machine(**asked)  # type: ignore[arg-type]
    assert min(pods, MAX_PODS) == capacity.pods


def test_more_pods_than_the_machine_carries_wait_and_say_why(tmp_path: Path) -> None:
    """With one pod per core, as many pods run as there are cores, however little they request. The others are
    Pending with the reason, and each starts when another one has ended."""
    with cluster(tmp_path / "cluster", Settings(pods_per_core=1)) as running:
        pods = Pods(running.client())
        little = {"requests": {"cpu": "10m"}}
        names = [f"worker-{index}" for index in range(CORES + 2)]
        for name in names:
            pods.create(name, container("sleep 600", resources=little))

        def waiting() -> set[str]:
            found = {name: (pods.get(name)["status"].get("conditions") or [{}])[0] for name in names}
            reason = f"1 Too many pods ({CORES} run at once: edl local up --pods-per-core)"
            return {name for name, said in found.items() if reason in said.get("message", "")}

        late = eventually(lambda: found if len(found := waiting()) == 2 else None, "two pods wait")
        runs = sorted(set(names) - late)
        for name in runs:
            pods.phase(name, "Running")
        assert {pods.get(name)["status"]["phase"] for name in late} == {"Pending"}
        with pytest.raises(InvalidError, match="Too many pods"):
            pods.logs(min(late))
        pods.delete(runs[0], grace=0)
        eventually(lambda: sum(pods.get(name)["status"]["phase"] == "Running" for name in late) == 1)
